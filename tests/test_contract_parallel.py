"""What is emitted for several processes is known to its real consumer: torchrun, Accelerate, DeepSpeed."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from importlib.util import find_spec
from itertools import product

import pytest
import yaml
from making import H100, SMALL, case, gpu, llama

from generator.case.case import Case
from generator.case.layout import Layout
from generator.emit.parallel import nest_keys
from generator.techniques.base import find_technique
from generator.techniques.edits import Edits, merge_edits
from generator.techniques.launch import restrict_links
from hwdetect.types import Disk

needs = pytest.mark.skipif(
    find_spec("accelerate") is None or find_spec("deepspeed") is None, reason="accelerate or deepspeed is not installed"
)
LAYOUTS = {
    "ddp": Layout(strategy="ddp", per_node=4, replicate=4),
    "ddp, 2 nodes": Layout(strategy="ddp", nodes=2, per_node=4, replicate=8),
    "zero1": Layout(strategy="zero1", per_node=4, shard=4),
    "zero2": Layout(strategy="zero2", per_node=4, shard=4),
    "zero3": Layout(strategy="zero3", per_node=4, shard=4),
    "zero3, 2 nodes": Layout(strategy="zero3", nodes=2, per_node=4, shard=8),
    "fsdp2": Layout(strategy="fsdp_full_shard", per_node=4, shard=4),
    "fsdp2-no-reshard": Layout(strategy="fsdp_shard_grad_op", per_node=4, shard=4),
    "fsdp2-at-load": Layout(strategy="fsdp_full_shard", per_node=4, shard=4, at_load=True),
    "hsdp": Layout(strategy="hsdp", nodes=2, per_node=4, replicate=2, shard=4),
}
OFFLOADS = {
    "zero2": ("optimizer-cpu",),
    "zero3": ("optimizer-cpu", "all-cpu", "optimizer-nvme", "all-nvme"),
    "fsdp2": ("all-cpu",),
}
PRECISIONS = ("fp32", "tf32", "bf16", "bf16-pure", "fp16")


def written(layout: str, offload: str = "none", precision: str = "bf16", checkpointing: str = "full", **told) -> Edits:
    """What the techniques write together for one layout."""
    of = replace(on_gpus(**told), layout=LAYOUTS[layout])
    names = {
        "parallelism": layout.split(",")[0],
        "offload": offload,
        "precision": precision,
        "checkpointing": checkpointing,
        "trained": told.get("train", "full"),
    }
    members = [find_technique(axis, name) for axis, name in names.items()]
    assert all(members)
    return merge_edits([(t.id, t.edits(of)) for t in members])


def on_gpus(**told) -> Case:
    found = case(H100, llama(**SMALL), **told)
    disks = (Disk(role="cache", path="/scratch", kind="nvme"),)
    return replace(found, hardware=replace(found.hardware, disks=disks), devices_per_node=4, nodes=2)


def by_accelerate() -> list[tuple[str, str, str, str]]:
    names = ("fsdp2", "fsdp2-no-reshard", "hsdp")
    found = list(product(names, ("none",), PRECISIONS, ("off", "full")))
    return [*found, ("fsdp2", "all-cpu", "bf16", "full")]


@needs
@pytest.mark.parametrize(("layout", "offload", "precision", "checkpointing"), by_accelerate())
def test_accelerate_reads_its_file(tmp_path, layout, offload, precision, checkpointing):
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import launch_command_parser

    edits = written(layout, offload, precision, checkpointing)
    settings, path = nest_keys(edits.accelerate), tmp_path / "accelerate.yaml"
    path.write_text(yaml.safe_dump(settings))
    read = load_config_from_file(str(path))  # refuses a key that it does not know
    assert read.num_processes == LAYOUTS[layout].devices and read.num_machines == LAYOUTS[layout].nodes
    options = set(vars(launch_command_parser().parse_args(["train.py"])))
    assert not set(settings["fsdp_config"]) - options  # but not inside of a block
    assert not set(settings.get("parallelism_config", {})) - options
    told = {a.name: a.code for a in edits.training_arguments}
    says = "bf16" if told.get("bf16") == "True" else "fp16" if told.get("fp16") == "True" else "no"
    assert read.mixed_precision == says  # the other of the two would win without a word
    assert settings["fsdp_config"].get("fsdp_activation_checkpointing", False) == (checkpointing == "full")
    assert told.get("activation_checkpointing") != "True"  # R006: never in both


@needs
@pytest.mark.parametrize("layout", LAYOUTS)
def test_launchers_take_their_words(layout, monkeypatch):
    from accelerate.commands.launch import launch_command_parser
    from torch.distributed.run import get_args_parser

    edits = written(layout, train="full")
    program, *words = edits.launcher
    if program == "torchrun":
        read = get_args_parser().parse_args([*words, "train.py"])
        assert int(read.nproc_per_node) == LAYOUTS[layout].per_node
        assert read.shutdown_timeout == 600
        assert read.training_script == "train.py"
    else:
        assert words[0] == "launch"
        read = launch_command_parser().parse_args([*words[1:], "train.py"])
        assert read.config_file == "accelerate.yaml" and read.training_script == "train.py"
        for name, value in edits.environment:
            monkeypatch.setenv(name, value)
        assert get_args_parser().parse_args(["train.py"]).shutdown_timeout == 600


def by_deepspeed() -> list[tuple[str, str, str]]:
    return [
        (layout, offload, precision)
        for layout in ("zero1", "zero2", "zero3")
        for offload in ("none", *OFFLOADS.get(layout, ()))
        for precision in ("fp32", "bf16", "fp16")
    ]


@needs
@pytest.mark.parametrize(("layout", "offload", "precision"), by_deepspeed())
def test_deepspeed_reads_its_file(tmp_path, monkeypatch, layout, offload, precision):
    """It accepts any misspelt name at the top level, so those are compared with the names in its own code."""
    monkeypatch.setitem(os.environ, "DS_ACCELERATOR", "cpu")
    from deepspeed.runtime import constants
    from deepspeed.runtime.zero.config import ZERO_OPTIMIZATION, DeepSpeedZeroConfig
    from transformers import TrainingArguments
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    edits = written(layout, offload, precision)
    settings = nest_keys(edits.deepspeed)
    known = {value for name, value in vars(constants).items() if name.isupper() and isinstance(value, str)}
    assert not set(settings) - known - {ZERO_OPTIMIZATION}
    assert "gradient_clippng" not in known

    flags = {a.name: a.code == "True" for a in edits.training_arguments if a.name in ("bf16", "fp16")}
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, per_device_train_batch_size=2)
    args.bf16, args.fp16 = flags.get("bf16", False), flags.get("fp16", False)
    filled = HfTrainerDeepSpeedConfig(json.loads(json.dumps(settings)))
    filled.trainer_config_process(args)
    filled.trainer_config_finalize(args, Sized(), 10)
    assert "auto" not in json.dumps(filled.config)
    zero = DeepSpeedZeroConfig(**filled.config["zero_optimization"])  # refuses a name that it does not know
    assert zero.stage == int(layout[-1])
    assert filled.config["bf16"]["enabled"] == (precision == "bf16")
    assert (zero.offload_optimizer is not None) == (offload != "none")
    assert (zero.offload_param is not None) == offload.startswith("all")
    if offload.endswith("nvme"):
        assert str(zero.offload_optimizer.nvme_path) == "/scratch"


class Sized:
    """As much of a model as the Trainer's deepspeed integration asks."""

    class config:
        hidden_size = 512


def test_settings_that_differ_are_a_conflict():
    from generator.techniques.edits import EditConflict

    with pytest.raises(EditConflict, match="fsdp_version"):
        merge_edits([("a", Edits(accelerate=(("fsdp_config.fsdp_version", 2),))), ("b", written("fsdp2"))])


def test_geforce_40_under_an_old_driver(monkeypatch):
    """The boards and the driver of Accelerate's own check, which stops a run without these variables."""
    found = on_gpus()
    old = replace(found, device=gpu("8.9", 24, name="NVIDIA GeForce RTX 4090"), layout=LAYOUTS["ddp"])

    def driver(version: str) -> dict[str, str]:
        software = replace(old.hardware.software, driver=version)
        return dict(restrict_links(replace(old, hardware=replace(old.hardware, software=software))))

    assert driver("535.104.05") == {"NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "1"}
    assert driver("550.40.06") and not driver("550.40.07") and not driver("580.65.06")
    assert not restrict_links(found)


@needs
def test_the_check_of_accelerate_has_not_moved():
    import inspect

    from accelerate.utils.environment import check_cuda_p2p_ib_support

    source = inspect.getsource(check_cuda_p2p_ib_support)
    assert '= "550.40.07"' in source and '= {"RTX 40"}' in source


def test_a_quantized_model_is_loaded_where_it_trains():
    arguments = {a.name: a.code for a in written("ddp", train="qlora").model_arguments}
    assert arguments["device_map"] == '{"": args.local_process_index}'
