"""Generated projects of several processes, run for real over gloo on this CPU: each makes the losses of one process.

What a project has here is put in the place of what the plan says of GPUs (``on_cpu``), and ``parallel_shim`` lets the libraries
divide a model that is on CPUs. The wrapper, the shards and the number of processes are looked at in every process.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from generator import pipeline
from generator.case.layout import Layout
from generator.case.request import Request
from generator.emit import render
from generator.emit.document import build_document
from generator.emit.plan_json import to_json
from generator.emit.sources import link_sources, place_sources
from generator.run import smoke
from generator.techniques.edits import merge_edits

pytestmark = pytest.mark.slow
SHIM = Path(__file__).parent / "parallel_shim"
TEXT = Path(__file__).resolve().parents[1] / "templates/project/{% if plan.project.sample %}sample{% endif %}/text.txt"
STEPS, BATCH = 6, 8
TEMPLATE = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{{ eos_token }}{% endfor %}"
TEMPLATE += "{% if add_generation_prompt %}<|assistant|>{% endif %}"
PLAIN = {"precision": "fp32", "loss": "plain", "compile": "off", "checkpointing": "off", "data-loading": "in-process"}
MACHINE = Path(__file__).resolve().parents[1] / "templates/fragments/machine/cpu.py"


@pytest.fixture(scope="session")
def inputs(tmp_path_factory) -> Path:
    """A folder with a tiny trained-looking model, its tokenizer and some text."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.trainers import BpeTrainer
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("inputs")
    text = TEXT.read_text(encoding="utf-8")[:60000]
    (folder / "data.txt").write_text(text, encoding="utf-8")
    rows = [{"text": line, "label": str(len(line) % 2)} for line in text.splitlines() if line.strip()][:64]
    (folder / "data.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    bpe = Tokenizer(BPE())
    bpe.pre_tokenizer = ByteLevel(add_prefix_space=False)
    alphabet = ByteLevel.alphabet()
    bpe.train_from_iterator([text], BpeTrainer(vocab_size=512, special_tokens=["<e>"], initial_alphabet=alphabet))
    words = PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<e>", eos_token="<e>", pad_token="<e>")
    words.chat_template = TEMPLATE
    lines = [line for line in text.splitlines() if line.strip()][
        :97
    ]  # of any length: processes learn from unequal counts
    chats = [[{"role": "user", "content": a[:20]}, {"role": "assistant", "content": b}] for a, b in pairwise(lines)]
    rows = [json.dumps({"messages": chat}) for chat in chats]
    (folder / "chats.jsonl").write_text("\n".join(rows), encoding="utf-8")
    words.save_pretrained(folder / "model")
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=176,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=512,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        initializer_range=0.1,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    return folder


def make(
    inputs: Path,
    folder: Path,
    layout: Layout | None,
    hardware: str,
    train: str = "full",
    task: str = "causal-lm",
    from_scratch: bool = False,
    **pins: str,
) -> Path:
    """A rendered project. ``layout``: the plan's techniques, over these devices whatever the plan would have taken."""
    plain = {name: value for name, value in PLAIN.items() if (task, name) != ("sft", "loss")}  # SFTTrainer has its own
    request = Request(
        model=str(inputs / "model"),
        data=str(inputs / {"text-classification": "data.jsonl", "sft": "chats.jsonl"}.get(task, "data.txt")),
        hardware=hardware,
        train=train,
        task=task,
        seq_len=64,
        global_batch=BATCH,
        max_steps=STEPS,
        learning_rate=1e-3,
        offline=True,
        from_scratch=from_scratch,
        pins=tuple((plain | {name.replace("_", "-"): value for name, value in pins.items()}).items()),
    )
    planned = pipeline.plan_request(request)
    if layout:
        planned = replace(planned, plan=over(planned.plan, layout))
    folder.mkdir(parents=True)
    render.render(to_json(build_document(planned, name=folder.name)), folder)
    link_sources(place_sources(planned.work, folder), folder)
    return folder


def over(plan, layout: Layout):
    """The plan with another layout: the techniques write what they would have written for it."""
    run = replace(plan.best.execution, micro_batch=BATCH // layout.dp, accumulation=1, dp=layout.dp)
    case = replace(plan.case, layout=layout)
    return replace(
        plan,
        best=replace(plan.best, layout=layout, execution=run),
        edits=merge_edits([(t.id, t.edits(case)) for t in plan.best.members]),
    )


def on_cpu(folder: Path) -> Path:
    """The machine that the test has, in the place of the planned one."""
    shutil.copyfile(MACHINE, folder / "machine.py")
    config, settings = folder / "config.yaml", folder / "deepspeed.json"
    values = yaml.safe_load(config.read_text())
    if "processes" in values:
        values["processes"]["expected"] |= {"backend": "gloo", "device": "cpu"}
    values["machine"] = {"device": "cpu", "cpus": 1, "needs_gib": 0}
    if "device" in values.get("first_step", {}):
        values["first_step"]["device"] = "cpu"
    if "lora" in values:
        values["lora"]["lora_dropout"] = 0.0
    config.write_text(yaml.safe_dump(values))
    if settings.exists():
        deepspeed = json.loads(settings.read_text())
        zero = deepspeed["zero_optimization"]
        for block in (zero.get("offload_optimizer", {}), zero.get("offload_param", {})):
            block["pin_memory"] = False  # there is no accelerator to pin for
        if zero["stage"] == 3:
            zero["stage3_param_persistence_threshold"] = 0  # a tiny model would else stay whole
        settings.write_text(json.dumps({**deepspeed, "zero_optimization": {k: v for k, v in zero.items() if v != {}}}))
    pinned = folder / "accelerate.yaml"
    if pinned.exists() and "fsdp_offload_params: true" in pinned.read_text():
        train = folder / "train.py"  # there is no accelerator to pin for
        train.write_text(
            train.read_text().replace("\nHERE = ", "\n__import__('torch').Tensor.pin_memory = lambda t: t\nHERE = ", 1)
        )
    chunks = folder / "chunked_loss.py"
    if chunks.exists():
        chunks.write_text(chunks.read_text().replace("CHUNK_TOKENS = 1024", "CHUNK_TOKENS = 64"))  # several in a batch
    return folder


def command(folder: Path, *words: str, more: tuple[str, ...] = ()) -> list[str]:
    """What `make train` runs; ``more`` words for the launcher."""
    parallel = json.loads((folder / "plan.json").read_text())["parallel"]
    program, *rest = parallel["launcher"] if parallel else ("python",)
    rest = [word.replace("$MASTER_ADDR", "localhost") for word in rest]
    return [str(Path(sys.executable).with_name(program)), *rest, *more, "train.py", *words]


def environment(folder: Path, *, gpus: bool) -> dict[str, str]:
    """``gpus``: Accelerate takes the processes for GPU processes."""
    held = folder / "held"
    held.mkdir(exist_ok=True)
    plain = {k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    more = {
        "PERFGEN_TEST_HELD": str(held),
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
        "HF_HOME": str(folder / "cache"),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TORCH_EXTENSIONS_DIR": str(folder.parent / "extensions"),
    }
    return plain | more | {"PYTHONPATH": str(SHIM)} | ({"PERFGEN_TEST_GPUS": "1"} if gpus else {})


def run(folder: Path, *words: str, gpus: bool = True, code: int = 0) -> str:
    """The output of a training, on as many launchers as it has nodes, whose caches are their own. Every process of it is gone
    afterwards."""
    started: list[subprocess.Popen] = []
    nodes = launchers(folder)
    logs = [folder / f"log-{node}" for node in range(len(nodes))]
    try:
        for number, (more, log) in enumerate(zip(nodes, logs, strict=True)):
            own = {"HF_HOME": str(folder / f"cache-{number}")} if len(nodes) > 1 else {}
            with log.open("w") as out:
                process = subprocess.Popen(
                    command(folder, *words, *(() if gpus else ("--use_cpu", "true")), more=more),
                    cwd=folder,
                    env=environment(folder, gpus=gpus) | own,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )
            started.append(process)
            if len(nodes) > 1:  # each launcher checks that the port is free, which only here it shares with the others
                wait_for(partial(listening, int(more[1])))
        for process in started:
            process.wait(timeout=600)
    finally:
        for process in started:
            kill_tree(process)
    for process, log in zip(started, logs, strict=True):
        assert (process.returncode == 0) == (code == 0), log.read_text()[-4000:]
    return "".join(log.read_text() for log in logs)


def launchers(folder: Path) -> list[tuple[str, ...]]:
    """The words by which each node's launcher differs here, where all of them share one host and its ports."""
    parallel = json.loads((folder / "plan.json").read_text())["parallel"]
    if parallel is None or parallel["nodes"] == 1:
        return [()]
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = str(probe.getsockname()[1])
    return [("--main_process_port", port, "--machine_rank", str(rank)) for rank in range(parallel["nodes"])]


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("localhost", port)) == 0


def kill_tree(process: subprocess.Popen) -> None:
    for pid in descendants(process.pid):
        os.kill(pid, signal.SIGKILL)
    process.kill()
    process.wait()


def descendants(pid: int) -> list[int]:
    import psutil

    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def report(folder: Path) -> dict:
    return json.loads((folder / "runs" / "run.json").read_text())


def held(folder: Path) -> list[dict]:
    """What each process held, by rank."""
    files = sorted((folder / "held").glob("*.json"), key=lambda path: int(path.stem))
    return [json.loads(path.read_text()) for path in files]


@pytest.fixture(scope="session")
def alone(inputs, tmp_path_factory) -> dict[str, list[float]]:
    """The losses of one process, for full training and for LoRA."""
    losses = {}
    for train in ("full", "lora"):
        folder = make(
            inputs, tmp_path_factory.mktemp(train) / "single", None, "1xa100-sxm-80gb", train, parallelism="single"
        )
        run(on_cpu(folder), gpus=False)
        losses[train] = report(folder)["losses"]
        assert losses[train][0] > losses[train][-1]
    return losses


def sharded(strategy: str, shard: int = 2, replicate: int = 1, **more) -> Layout:
    return Layout(strategy=strategy, per_node=shard * replicate, shard=shard, replicate=replicate, **more)


FSDP2 = {"parallelism": "fsdp2", "loss": "chunked", "checkpointing": "full"}
AT_LOAD = {"parallelism": "fsdp2-at-load", "loss": "chunked", "checkpointing": "every-2"}
ZERO2 = {"parallelism": "zero2", "offload": "optimizer-cpu"}
ZERO3 = {"parallelism": "zero3", "offload": "all-cpu", "checkpointing": "full", "loss": "chunked"}
HSDP = Layout(strategy="hsdp", nodes=2, per_node=2, replicate=2, shard=2)
LORA = {"parallelism": "fsdp2-no-reshard", "train": "lora", "checkpointing": "full"}
CASES = {
    "ddp": (sharded("ddp", 1, 2), {"parallelism": "ddp"}, "DistributedDataParallel", 1),
    "zero1": (sharded("zero1"), {"parallelism": "zero1"}, "DeepSpeedEngine", 1),
    "zero2-offload": (sharded("zero2"), ZERO2, "DeepSpeedEngine", 1),
    "zero3-offload": (sharded("zero3"), ZERO3, "DeepSpeedEngine", 2),
    "fsdp2": (sharded("fsdp_full_shard"), FSDP2, "FSDPModule", 2),
    "fsdp2-no-reshard-lora": (sharded("fsdp_shard_grad_op"), LORA, "FSDPModule", 2),
    "fsdp2-at-load": (sharded("fsdp_full_shard", at_load=True), AT_LOAD, "FSDPModule", 2),
    "hsdp": (HSDP, {"parallelism": "hsdp"}, "FSDPModule", 2),
}
RESUMED = ("zero3-offload", "fsdp2-no-reshard-lora")


@pytest.mark.parametrize("name", CASES)
def test_the_losses_of_one_process(inputs, alone, tmp_path, name):
    layout, pins, wrapper, parts = CASES[name]
    hardware = "2x2xa100-sxm-80gb" if name == "hsdp" else "2xa100-sxm-80gb"
    folder = on_cpu(make(inputs, tmp_path / name, layout, hardware, **pins))
    output = run(folder, "--save_steps", "3", gpus=name != "ddp")
    measured, processes = report(folder), held(folder)

    expected = alone[pins.get("train", "full")]
    assert measured["losses"] == pytest.approx(expected, rel=1e-4)
    assert measured["processes"] == len(processes) == layout.devices
    assert measured["tokens_per_step"] == BATCH * 64
    assert (
        output.count("divided as planned: ") == output.count("\nas planned: ") == 1
    )  # the first process alone says it
    for process in processes:
        assert wrapper in process["kinds"]
        assert process["local"] == pytest.approx(process["full"] / parts, rel=0.02)
        if "states" in process:  # of ZeRO's first stages: the weights are whole, their states are not
            assert process["states"] == pytest.approx(process["full"] / layout.shard, rel=0.02)
    check_saved_model(folder, lora="train" in pins)
    if name in RESUMED:
        resumes(folder, measured["losses"])


def test_weights_that_deepspeed_divides_on_cpus(inputs, alone, tmp_path):
    """As it is planned for processes of this CPU: it ended where it read the model, each process taking itself for the only one."""
    folder = make(inputs, tmp_path / "p", None, "2xcpu:1", parallelism="zero3")
    run(folder, "--save_steps", "3", gpus=False)
    assert report(folder)["losses"] == pytest.approx(alone["full"], rel=1e-4) and report(folder)["processes"] == 2


ANSWERS = {
    "ddp": (sharded("ddp", 1, 2), {}),
    "fsdp2": (sharded("fsdp_full_shard"), {"checkpointing": "full"}),
    "fsdp2-at-load": (sharded("fsdp_full_shard", at_load=True), {"checkpointing": "every-2"}),
    "zero2": (sharded("zero2"), {"offload": "optimizer-cpu"}),
    "zero3": (sharded("zero3"), {"offload": "all-cpu", "checkpointing": "full"}),
}


@pytest.mark.parametrize("train", ["full", "lora"])
def test_the_losses_of_answers(inputs, tmp_path, train):
    """SFTTrainer multiplies by the output layer's weight itself, past the hooks that gather it: losses, evaluations and weights are
    those of one process all the same, where processes learn from unequal counts of tokens."""
    import torch
    from safetensors.torch import load_file

    asked = {"task": "sft", "train": train, "packing": "padded"}
    one = on_cpu(make(inputs, tmp_path / "one", None, "1xa100-sxm-80gb", parallelism="single", **asked))
    run(one, gpus=False)
    expected = report(one)
    for name, (layout, pins) in ANSWERS.items():
        if train == "lora" and name in ("fsdp2-at-load", "zero2"):  # refused, or the same
            continue
        folder = on_cpu(make(inputs, tmp_path / name, layout, "2xa100-sxm-80gb", parallelism=name, **asked, **pins))
        run(folder, gpus=name != "ddp")
        measured = report(folder)
        assert measured["losses"] == pytest.approx(expected["losses"], rel=1e-5), name
        for two, alone in zip(measured["evaluations"], expected["evaluations"], strict=True):
            assert two["loss"] == pytest.approx(alone["loss"], rel=1e-5), name
        saved, plain = (load_file(next(of.glob("runs/*model.safetensors"))) for of in (folder, one))
        assert saved.keys() == plain.keys(), name
        assert all(torch.allclose(saved[key], plain[key], atol=1e-4) for key in plain), name


@pytest.mark.parametrize("checkpointing", ["full", "off"])
def test_packed_weights_are_divided(inputs, tmp_path, checkpointing):
    """FSDP-QLoRA: every parameter is divided, packed ones as the 16-bit numbers that they are stored in; the losses are those of one
    process, in bf16, which keeps norms and embedding in float32."""
    pytest.importorskip("bitsandbytes")
    how = {"train": "qlora", "precision": "bf16", "checkpointing": checkpointing}
    one = without_tf32(make(inputs, tmp_path / "one", None, "1xa100-sxm-80gb", parallelism="single", **how))
    layout = sharded("fsdp_full_shard")
    two = without_tf32(make(inputs, tmp_path / "two", layout, "2xa100-sxm-80gb", parallelism="fsdp2-packed", **how))
    run(one, gpus=False)
    output = run(two, "--save_steps", "3")
    measured, processes = report(two), held(two)
    assert measured["losses"] == pytest.approx(report(one)["losses"], rel=3e-3)
    assert "frozen bfloat16" in output and "trained float32" in output and "sharded all" in output
    for process in processes:
        assert process["local"] == pytest.approx(process["full"] / 2, rel=0.02)
    check_saved_model(two, lora=True)
    if checkpointing == "full":
        resumes(two, measured["losses"])


def without_tf32(folder: Path) -> Path:
    """On this CPU, where TrainingArguments refuses TF32."""
    on_cpu(folder)
    train = folder / "train.py"
    lines = train.read_text().splitlines(keepends=True)
    train.write_text("".join(line for line in lines if "tf32=" not in line))
    return folder


def test_a_classifiers_losses(inputs, tmp_path):
    """Its loss is a mean of a micro-batch, which Trainer would sum over the processes; its adapter's labels are written once."""
    pins = {"task": "text-classification", "train": "lora", "packing": "padded"}
    one = on_cpu(make(inputs, tmp_path / "one", None, "1xa100-sxm-80gb", parallelism="single", **pins))
    two = on_cpu(make(inputs, tmp_path / "two", sharded("ddp", 1, 2), "2xa100-sxm-80gb", parallelism="ddp", **pins))
    for folder in (one, two):
        run(folder, gpus=False)
    assert report(two)["losses"] == pytest.approx(report(one)["losses"], rel=1e-4)
    assert json.loads((two / "runs" / "labels.json").read_text()) == ["0", "1"]


def check_saved_model(folder: Path, *, lora: bool) -> None:
    """What infer.py finds: one plain folder, with every weight at its full size."""
    from safetensors import safe_open

    path = folder / "runs" / ("adapter_model.safetensors" if lora else "model.safetensors")
    with safe_open(path, "pt") as weights:
        shapes = {name: weights.get_slice(name).get_shape() for name in weights.keys()}  # noqa: SIM118
    if lora:
        assert all(0 not in shape for shape in shapes.values()) and len(shapes) == 2 * 7 * 4
    else:
        assert shapes["model.embed_tokens.weight"] == [512, 64] and shapes["lm_head.weight"] == [512, 64]


def resumes(folder: Path, losses: list[float]) -> None:
    """Killed before its report; then from the checkpoint of step 3, for what the second process wrote at the last is damaged."""
    (folder / "runs" / "run.json").unlink()
    run(folder)
    assert report(folder)["losses"] == losses and report(folder)["finished_step"] == STEPS

    (folder / "runs" / "run.json").unlink()
    last = folder / "runs" / f"checkpoint-{STEPS}"
    sealed = set(json.loads((last / "complete.json").read_text())["files"])
    assert sealed == {str(path.relative_to(last)) for path in last.rglob("*") if path.is_file()} - {"complete.json"}
    (shard,) = (name for name in sealed if re.search(r"zero_pp_rank_1_.*optim|optimizer_0/__1_", name))
    content = bytearray((last / shard).read_bytes())
    content[len(content) // 2] ^= 1
    (last / shard).write_bytes(content)
    run(folder)
    again = report(folder)
    assert again["resumed_from"] == 3 and (folder / "runs" / "_set-aside" / last.name).is_dir()
    assert again["losses"] == pytest.approx(losses, rel=1e-5)


NODES = Layout(strategy="fsdp_full_shard", nodes=2, per_node=2, shard=4)
DIES = """
import os
import signal

import transformers.modeling_utils as loading

open_file = loading.safe_open


def safe_open(*arguments, **keywords):
    if os.environ["RANK"] == "%s":
        os.kill(os.getpid(), signal.SIGKILL)
    return open_file(*arguments, **keywords)


loading.safe_open = safe_open
"""


def test_one_process_of_each_node_reads(inputs, alone, tmp_path):
    """Two launchers of two processes: the weights of all four are those of the very first, whichever others read. One that ends
    while it reads is named, and leaves neither a process that waits for its weights nor a run."""
    folder = on_cpu(make(inputs, tmp_path / "p", NODES, "2x2xa100-sxm-80gb", **FSDP2))
    train = (folder / "train.py").read_text()
    reads = 'device_map=None if args.local_process_index == 0 else "meta"'
    assert train.count(reads) == 1 and "import dies" not in train
    (folder / "train.py").write_text(f"import dies\n{train}")
    for rank in (0, 2):
        (folder / "dies.py").write_text(DIES % rank)
        output = run(folder, code=1)
        assert re.search(rf"rank +: {rank} .*\n +exitcode +: -9 ", output), output[-3000:]
        assert "divided as planned" not in output and not (folder / "runs/run.json").exists()
        assert not list((folder / "runs").glob("checkpoint-*"))
    (folder / "train.py").write_text(train)
    run(folder)
    assert report(folder)["losses"] == pytest.approx(alone["full"], rel=1e-4)
    assert report(folder)["processes"] == 4 and not report(folder)["resumed_from"]


def test_tied_weights_that_one_process_reads(inputs, tmp_path):
    """They are one weight on every process, and where plain Transformers loads what was saved."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    tied = tmp_path / "inputs"
    shutil.copytree(inputs, tied)
    config = LlamaConfig.from_pretrained(tied / "model", tie_word_embeddings=True)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tied / "model")
    one = on_cpu(make(tied, tmp_path / "one", None, "1xa100-sxm-80gb", parallelism="single"))
    two = on_cpu(make(tied, tmp_path / "two", sharded("fsdp_full_shard"), "2xa100-sxm-80gb", **FSDP2))
    run(one, gpus=False)
    run(two, "--save_steps", "3")
    assert report(two)["losses"] == pytest.approx(report(one)["losses"], rel=1e-4)
    assert report(two)["run"]["trained parameters"] == report(one)["run"]["trained parameters"]
    trained, expected = (AutoModelForCausalLM.from_pretrained(path / "runs") for path in (two, one))
    assert trained.get_output_embeddings().weight is trained.get_input_embeddings().weight
    for weight, other in zip(trained.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(weight, other, atol=2e-4, rtol=0)
    resumes(two, report(two)["losses"])


@pytest.mark.parametrize("tied", [False, True])
def test_new_weights_that_the_first_process_draws(inputs, tmp_path, tied):
    """The same random numbers as of one process; the others' weights are made on no disk and in no memory."""
    given = tmp_path / "inputs"
    shutil.copytree(inputs, given)
    config = json.loads((given / "model/config.json").read_text()) | {"tie_word_embeddings": tied}
    (given / "model/config.json").write_text(json.dumps(config))
    one = on_cpu(make(given, tmp_path / "one", None, "1xa100-sxm-80gb", from_scratch=True, parallelism="single"))
    pins = {"from_scratch": True, **({"parallelism": "hsdp"} if tied else FSDP2)}
    layout, hardware = (HSDP, "2x2xa100-sxm-80gb") if tied else (sharded("fsdp_full_shard"), "2xa100-sxm-80gb")
    several = on_cpu(make(given, tmp_path / "several", layout, hardware, **pins))
    assert (several / "train.py").read_text().count("draw_once(") == 1
    run(one, gpus=False)
    run(several, "--save_steps", "3")
    assert report(several)["losses"] == pytest.approx(report(one)["losses"], rel=1e-4)
    for process in held(several):
        assert "FSDPModule" in process["kinds"] and process["local"] == pytest.approx(process["full"] / 2, rel=0.02)
    resumes(several, report(several)["losses"])


WRITTEN_SLOWLY = """

write_now = write_part


def write_part(file, *arguments):
    with open("written", "a") as log:
        log.write(f"{os.environ['RANK']} {file.parent.name}\\n")
    time.sleep(1)
    write_now(file, *arguments)
"""


def test_nodes_with_disks_of_their_own_prepare_the_data_once_each(inputs, tmp_path):
    """All processes of the second node did, at one time: SkyPilot's nodes share the volume of the runs alone."""
    folder = on_cpu(make(inputs, tmp_path / "p", HSDP, "2x2xa100-sxm-80gb", parallelism="hsdp"))
    parts = folder / "parts.py"
    parts.write_text(parts.read_text() + WRITTEN_SLOWLY)
    run(folder, "--max_steps", "1")
    written = (folder / "written").read_text().splitlines()
    assert {line.split()[0] for line in written} == {"0", "2"} and len(set(written)) == len(written), written


def test_a_silent_fallback_is_an_error(inputs, tmp_path):
    """Accelerate on a CPU runs DDP where FSDP was asked for, and exits 0: the check must not."""
    folder = on_cpu(
        make(inputs, tmp_path / "fallback", sharded("fsdp_full_shard"), "2xa100-sxm-80gb", parallelism="fsdp2")
    )
    settings = folder / "accelerate.yaml"
    settings.write_text(settings.read_text().replace("use_cpu: false", "use_cpu: true"))
    output = run(folder, gpus=False, code=1)
    assert "does not train as planned" in output
    assert "wrapper: DistributedDataParallel, not FSDPModule" in output
    assert not (folder / "runs" / "run.json").exists()


def test_tensor_parallelism_that_accelerate_passes_over_is_an_error(inputs, tmp_path):
    """ParallelismConfig on a model that was not divided as it was loaded: right losses, exit 0, and only the rest is divided."""
    folder = on_cpu(
        make(inputs, tmp_path / "trap", sharded("fsdp_full_shard", 4), "4xa100-sxm-80gb", parallelism="fsdp2")
    )
    settings = yaml.safe_load((folder / "accelerate.yaml").read_text())
    sizes = {"parallelism_config_tp_size": 2, "parallelism_config_dp_shard_size": 2}
    (folder / "accelerate.yaml").write_text(yaml.safe_dump(settings | {"parallelism_config": sizes}))
    output = run(folder, code=1)
    assert "does not train as planned" in output and "not ['(4,)']" in output, output[-3000:]
    assert not (folder / "runs" / "run.json").exists()


@pytest.mark.core
def test_smoke_run_starts_the_launcher(inputs, tmp_path, monkeypatch):
    folder = on_cpu(make(inputs, tmp_path / "ddp", sharded("ddp", 1, 2), "2xa100-sxm-80gb", parallelism="ddp"))
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    infer = folder / "infer.py"
    infer.write_text(infer.read_text().replace('device_map="cuda"', 'device_map="cpu"'))
    result = smoke.run_project(folder, say=lambda text="", **_: None, steps=3, seconds=240, python=sys.executable)
    assert len(result["losses"]) == 3 and result["inference"]["new_tokens"] > 0
    assert json.loads((folder / "runs/smoke/run.json").read_text())["processes"] == 2
    assert "torch.distributed.run" in result["commands"][0]


def test_started_without_a_launcher(inputs, tmp_path):
    folder = on_cpu(make(inputs, tmp_path / "ddp", sharded("ddp", 1, 2), "2xa100-sxm-80gb", parallelism="ddp"))
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=folder, env=environment(folder, gpus=False), capture_output=True, text=True
    )
    assert done.returncode == 1 and "needs 2 processes" in done.stderr and "torchrun" in done.stderr


def count_sayings(output: str, text: str) -> tuple[int, int]:
    """By the processes, and in the launcher's summary below them, which says once more what ended the run."""
    said, _, summary = output.partition("Root Cause (first observed failure)")
    return said.count(text), summary.count(text)


def test_a_second_start_in_one_folder_is_refused_in_one_line(inputs, tmp_path):
    folder = on_cpu(make(inputs, tmp_path / "ddp", sharded("ddp", 1, 2), "2xa100-sxm-80gb", parallelism="ddp"))
    (folder / "runs").mkdir()
    with (folder / "runs" / "_train.lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        output = run(folder, gpus=False, code=1)
    assert count_sayings(output, "another process is at work there") == (1, 1)
    assert "RuntimeError" not in output and "DistBackendError" not in output  # of processes that lost the first


def test_a_finished_run_that_cannot_resume_is_refused_on_all_processes(inputs, tmp_path):
    """One that ended alone left those of other nodes waiting for it, for hours."""
    layout, pins, _, _ = CASES["fsdp2-at-load"]
    folder = on_cpu(make(inputs, tmp_path / "p", layout, "2xa100-sxm-80gb", **pins))
    (folder / "runs").mkdir()
    (folder / "runs" / "run.json").write_text("{}")
    output = run(folder, code=1)
    assert count_sayings(output, "holds a finished run") == (1, 1)
    assert "RuntimeError" not in output and "DistBackendError" not in output
    assert "broadcast_from_rank0(begin_anew, " in (folder / "train.py").read_text()


def test_a_closed_terminal(inputs, alone, tmp_path):
    """It ends the launcher after a save. Under nohup it ends nothing: torchrun would take the signal back."""
    folder = on_cpu(make(inputs, tmp_path / "ddp", sharded("ddp", 1, 2), "2xa100-sxm-80gb", parallelism="ddp"))
    slow = {"PERFGEN_TEST_SECONDS_A_STEP": "1"}
    # of a login: the tests themselves may run under nohup
    default = ["env", "--default-signal=HUP", "sh", "-c", '. ./env.sh && exec "$@"', "sh"]
    interrupt(folder, slow, lambda process: process.send_signal(signal.SIGHUP), before=default)
    (checkpoint,) = (folder / "runs").glob("checkpoint-*")
    assert (checkpoint / "complete.json").exists()

    nohup = ["sh", "-c", """trap '' HUP && . ./env.sh && exec "$@" """, "sh"]
    interrupt(folder, slow, lambda process: process.send_signal(signal.SIGHUP), before=nohup, code=0)
    assert report(folder)["losses"] == pytest.approx(alone["full"], rel=1e-4)


def test_interrupted_and_resumed(inputs, alone, tmp_path):
    """SIGTERM to the launcher: all processes save after the same step. One killed: the launcher ends the rest."""
    folder = on_cpu(make(inputs, tmp_path / "ddp", sharded("ddp", 1, 2), "2xa100-sxm-80gb", parallelism="ddp"))
    slow = {"PERFGEN_TEST_SECONDS_A_STEP": "1"}
    start = interrupt(folder, slow, lambda process: process.terminate())
    assert "stopped by SIGTERM after step" in start
    (checkpoint,) = (folder / "runs").glob("checkpoint-*")
    step = int(checkpoint.name.removeprefix("checkpoint-"))
    assert 1 <= step < STEPS and (checkpoint / "complete.json").exists()
    assert len(list(checkpoint.glob("rng_state_*.pth"))) == 2

    pids: list[int] = []

    def kill_last(process: subprocess.Popen) -> None:
        pids.extend(descendants(process.pid))
        os.kill(pids[-1], signal.SIGKILL)

    output = interrupt(folder, slow, kill_last)
    cause = output[output.index("Root Cause (first observed failure)") :]
    assert re.search(rf"rank +: [01] .*\n +exitcode +: -9 \(pid: {pids[-1]}\)", cause), output[-3000:]
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert [path.parent for path in (folder / "runs").glob("checkpoint-*/complete.json")] == [checkpoint]
    run(folder, gpus=False)
    measured = report(folder)
    assert measured["resumed_from"] == step
    assert measured["losses"] == pytest.approx(alone["full"], rel=1e-4)


def test_a_hung_process_is_named_and_none_is_left(inputs, tmp_path):
    """Stopped in a step: the other waits for it in a collective. The checkpoint before it stays whole."""
    folder = on_cpu(make(inputs, tmp_path / "ddp", sharded("ddp", 1, 2), "2xa100-sxm-80gb", parallelism="ddp"))
    leaf = folder / "heartbeat.py"
    text = leaf.read_text(encoding="utf-8").replace("BEAT_SECONDS = 10.0", "BEAT_SECONDS = 0.5")
    leaf.write_text(text.replace("SILENT_SECONDS = 300.0", "SILENT_SECONDS = 8.0"), encoding="utf-8")
    stopped = []

    def stop(process: subprocess.Popen) -> None:
        stopped.extend(descendants(process.pid))
        os.kill(stopped[-1], signal.SIGSTOP)

    slow = {"PERFGEN_TEST_SECONDS_A_STEP": "1"}
    saves = ("--save_strategy", "steps", "--save_steps", "1")
    output = interrupt(folder, slow, stop, words=saves, more_words=("--shutdown-timeout", "5"))
    assert f"process {stopped[-1]}) has not answered for 8 s" in output
    assert not [pid for pid in stopped if Path(f"/proc/{pid}").exists()]
    checkpoints = sorted((folder / "runs").glob("checkpoint-*/complete.json"))
    assert checkpoints
    run(folder, gpus=False)
    assert report(folder)["resumed_from"] >= 1


def interrupt(
    folder: Path,
    more: dict[str, str],
    how,
    before: Sequence[str] = (),
    code: int | None = None,
    words: Sequence[str] = (),
    more_words: tuple[str, ...] = (),
) -> str:
    """Start, wait for the second logged step, interrupt; the output once every process is gone."""
    log = folder / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [*before, *command(folder, "--use_cpu", "true", *words, more=more_words)],
            cwd=folder,
            env=environment(folder, gpus=False) | more,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        try:
            wait_for(lambda: log.read_text().count("  loss ") >= 2 or process.poll() is not None, 240.0)
            how(process)
            process.wait(timeout=300)
        finally:
            kill_tree(process)
    assert process.returncode == code if code is not None else process.returncode != 0, log.read_text()[-3000:]
    return log.read_text()


def wait_for(condition, seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.1)
