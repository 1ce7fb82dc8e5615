"""Mixtures of experts divided over processes by FSDP2 and DeepSpeed, for real over gloo: trained, killed, resumed, and read by Transformers."""

from __future__ import annotations

import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from test_packed_experts import pack_experts
from test_parallel_projects import (
    BATCH,
    HSDP,
    STEPS,
    command,
    environment,
    held,
    inputs,  # noqa: F401
    kill_tree,
    make,
    on_cpu,
    report,
    run,
    sharded,
    wait_for,
)

pytestmark = pytest.mark.slow
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "initializer_range": 0.1,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
ROUTED = {
    "qwen3_moe": {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 16},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt_oss": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "head_dim": 16,
        "sliding_window": 32,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "moe_intermediate_size": 32,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "q_lora_rank": 32,
        "kv_lora_rank": 32,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
    },
}
FORMS = {
    "zero2": (sharded("zero2"), {}),
    "zero3": (sharded("zero3"), {"checkpointing": "full"}),
    "fsdp2": (sharded("fsdp_full_shard"), {"checkpointing": "full"}),
    "fsdp2-at-load": (sharded("fsdp_full_shard", at_load=True), {"checkpointing": "full"}),
    "hsdp": (HSDP, {}),
}


def make_mixture(inputs: Path, folder: Path, model_type: str) -> Path:  # noqa: F811
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    shutil.copytree(inputs, folder)
    (folder / "model" / "model.safetensors").unlink()
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **SIZES | ROUTED[model_type])
    model = AutoModelForCausalLM.from_config(config)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):  # zeros, until a pretraining has balanced the experts by it
            buffer.uniform_(-0.1, 0.1)
    model.save_pretrained(folder / "model")
    return folder


def kill_after_a_save(project: Path, *words: str) -> None:
    log = project / "killed.log"
    with log.open("w") as out:
        started = [
            subprocess.Popen(
                command(project, *words, more=more),
                cwd=project,
                env=environment(project, gpus=True) | {"PERFGEN_TEST_SECONDS_A_STEP": "1"},
                stdout=out,
                stderr=subprocess.STDOUT,
            )
            for more in launch_words(project)
        ]
        try:
            sealed = partial(project.glob, "runs/checkpoint-*/complete.json")
            wait_for(lambda: any(sealed()) or any(p.poll() is not None for p in started), 400.0)
        finally:
            for process in started:
                kill_tree(process)
    assert any(sealed()) and not (project / "runs" / "run.json").exists(), log.read_text()[-4000:]


def launch_words(project: Path) -> list[tuple[str, ...]]:
    from test_parallel_projects import launchers

    return launchers(project)


def load_plain(project: Path, train: str) -> dict:
    """The weights by Transformers alone, or the adapters as PEFT finds them beside the base."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    folder = project / "runs"
    if train == "full":
        model, loading = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
        assert not loading["missing_keys"] and not loading["unexpected_keys"], loading
        return model.state_dict()
    base = AutoModelForCausalLM.from_pretrained(project.parent / "inputs" / "model", dtype=torch.float32)
    adapters = {n: w for n, w in PeftModel.from_pretrained(base, folder).state_dict().items() if "lora_" in n}
    assert all(weight.any() for weight in adapters.values())
    return adapters


CASES = [
    ("qwen3_moe", "fsdp2", "causal-lm", "lora"),
    ("qwen3_moe", "zero3", "causal-lm", "lora"),
    ("qwen3_moe", "fsdp2", "causal-lm", "full"),
    ("qwen3_moe", "zero3", "causal-lm", "full"),
    ("gpt_oss", "fsdp2", "causal-lm", "full"),
    ("gpt_oss", "zero3", "sft", "full"),
    ("deepseek_v3", "zero3", "causal-lm", "full"),
    ("deepseek_v3", "fsdp2", "sft", "lora"),
    ("deepseek_v3", "fsdp2", "causal-lm", "full"),
    ("mixtral", "zero2", "sft", "full"),
    ("mixtral", "hsdp", "causal-lm", "full"),
    ("mixtral", "zero3", "sft", "lora"),
    ("gpt_oss", "zero3", "causal-lm", "lora"),
]


@pytest.mark.parametrize(("model_type", "form", "task", "train"), CASES)
def test_a_divided_mixture_goes_on_after_a_kill(inputs, tmp_path, model_type, form, task, train):  # noqa: F811
    """Its losses are those of one process, killed or not, and so are its weights, whoever reads them."""
    import torch

    places = make_mixture(inputs, tmp_path / "inputs", model_type)
    asked = {"task": task, "train": train} | ({"packing": "padded"} if task == "sft" else {})
    layout, pins = FORMS[form]
    one = on_cpu(make(places, tmp_path / "one", None, "1xa100-sxm-80gb", parallelism="single", **asked))
    hardware = "2x2xa100-sxm-80gb" if form == "hsdp" else "2xa100-sxm-80gb"
    two = on_cpu(make(places, tmp_path / "two", layout, hardware, parallelism=form, **asked, **pins))
    for project in (one, two):  # a balance of a micro-batch is another one than that of a batch
        config = project / "config.yaml"
        config.write_text(config.read_text().replace("router_loss: null", "router_loss: 0"))
    run(one, gpus=False)
    kill_after_a_save(two, "--save_steps", "2")
    run(two, "--save_steps", "2")
    measured = report(two)
    assert measured["resumed_from"] >= 2 and measured["finished_step"] == STEPS
    assert measured["losses"] == pytest.approx(report(one)["losses"], rel=1e-4)
    assert measured["processes"] == len(held(two)) == layout.devices and BATCH % layout.devices == 0
    expected, weights = load_plain(one, train), load_plain(two, train)
    assert expected.keys() == weights.keys()
    assert [name for name in expected if not torch.allclose(expected[name], weights[name], atol=2e-4)] == []


@pytest.fixture(scope="module")
def packed(inputs, tmp_path_factory) -> Path:  # noqa: F811
    """gpt-oss as it is published."""
    import torch
    from transformers import AutoModelForCausalLM

    folder = make_mixture(inputs, tmp_path_factory.mktemp("packed") / "inputs", "gpt_oss")
    model = folder / "model"
    AutoModelForCausalLM.from_pretrained(model).to(torch.bfloat16).save_pretrained(model)
    pack_experts(model)
    return folder


@pytest.mark.parametrize(
    ("form", "train"), [("zero2", "full"), ("fsdp2", "lora"), ("fsdp2", "full"), ("fsdp2-at-load", "full")]
)
def test_experts_that_are_unpacked_as_they_are_read_are_divided(packed, tmp_path, form, train):
    """With the losses of one process, and the loss of their balance, whatever class FSDP2 has made of the model."""
    layout, pins = FORMS[form]
    one = on_cpu(make(packed, tmp_path / "one", None, "1xa100-sxm-80gb", train, parallelism="single"))
    two = on_cpu(make(packed, tmp_path / "two", layout, "2xa100-sxm-80gb", train, parallelism=form, **pins))
    for project in (one, two):
        run(project, gpus=project is two)
    measured = report(two)
    assert measured["losses"] == pytest.approx(report(one)["losses"], rel=1e-4)
    assert measured["processes"] == len(held(two)) == layout.devices
