"""Techniques by name: a case whose plan takes it, by itself or at a word of the user's, and one that refuses it with its reason."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from generator.case.request import Request
from generator.errors import UsageError
from generator.pipeline import plan_request
from generator.techniques.base import find_technique

MODELS = Path(__file__).resolve().parents[1] / "examples" / "models"
LLAMA, QWEN, SMOLLM2 = "llama-3.1-8b", "qwen2.5-1.5b", "smollm2-135m"
MIXTURE, ENCODER, LARGE = "qwen3-30b-a3b", "bert-base", "llama-3.1-70b"


def ask(model: str, hardware: str, **more: Any) -> dict[str, Any]:
    config = str(MODELS / f"{model}.json")
    return {"model": "owner/name", "config": config, "hardware": hardware, "offline": True} | more


def tune(model: str = QWEN, hardware: str = "1xl40s", **more: Any) -> dict[str, Any]:
    return ask(model, hardware, **{"task": "sft", "seq_len": 1024, "global_batch": 8} | more)


PRETRAIN = ask(QWEN, "1xh100-sxm-80gb", from_scratch=True, seq_len=2048, global_batch=32, max_steps=20000)
SMALL = PRETRAIN | {"config": str(MODELS / f"{SMOLLM2}.json"), "global_batch": 8}
LORA = tune(train="lora")
FULL = tune(train="full")
LONG = tune(LLAMA, "1xrtx-4090", train="qlora", seq_len=65536, global_batch=1)
CLASSES = ask(ENCODER, "1xl40s", task="text-classification", seq_len=256, global_batch=32)
MIXED = tune(MIXTURE, "8xh200-sxm-141gb", train="full")
ON_CPU = tune(SMOLLM2, "cpu:8,64gb", train="full", seq_len=512)
ANSWER = ask(LLAMA, "1xl40s", mode="infer")
ONE_SEQUENCE = tune(LLAMA, "1xrtx-4090", train="full", global_batch=1)
ITSELF, PINNED, ALLOWED = "by itself", "--pin", "--allow"
CASES = {
    "compile/default": (PRETRAIN, PINNED, tune(LLAMA, train="qlora"), "must not be compiled"),
    "compile/reduce-overhead": (SMALL, ALLOWED, tune(LLAMA, train="qlora"), "must not be compiled"),
    "compile/max-autotune": (SMALL, ALLOWED, ON_CPU, "NVIDIA's devices alone"),
    "compile/regional": (PRETRAIN, PINNED, tune(LLAMA, train="qlora"), "must not be compiled"),
    "checkpointing/selective": (PRETRAIN, PINNED, LORA, "every second product is an adapter's"),
    "checkpointing/offloaded": (LONG | {"seq_len": 8192}, PINNED, ON_CPU, "no accelerator to offload from"),
    "checkpointing/tiled": (LONG | {"seq_len": 16384}, PINNED, LORA, "is one tile"),
    "checkpointing/tiled-offloaded": (LONG, ITSELF, LORA, "is one tile"),
    "packing/varlen": (LORA, PINNED, tune(train="lora", hardware="1xt4"), "8.0"),
    "packing/flattened": (ON_CPU, PINNED, LORA, "off the CPU"),
    "packing/packed": (PRETRAIN, ITSELF, CLASSES, "every text has its own label"),
    "precision/fp8-tensorwise": (PRETRAIN, ALLOWED, LORA, "frozen layers would have to be scaled"),
    "precision/fp8-rowwise": (PRETRAIN, ALLOWED, MIXED, "routed experts are one tensor"),
    "loss/chunked": (LORA, ITSELF, CLASSES, "no vocabulary-sized logits"),
    "loss/liger": (PRETRAIN, ITSELF, LORA, "deprecates Liger"),
    "optimizer/in-backward-paged-adamw-8bit": (
        ONE_SEQUENCE,
        ALLOWED,
        LORA,
        "gradients and states of adapters are small",
    ),
    "trained/qlora": (
        tune(LLAMA, train="qlora"),
        ITSELF,
        tune(train="qlora", hardware="tpu-v5e-8"),
        "bitsandbytes has no kernels",
    ),
    "adapter/lora": (LORA, ITSELF, FULL, "adapter"),
    "adapter/dora": (LORA | {"adapter": "dora"}, ITSELF, FULL, "adapter"),
    "adapter/rslora": (LORA | {"adapter": "rslora"}, ITSELF, FULL, "adapter"),
    "parallelism/fsdp2-packed": (
        tune(LARGE, "2xrtx-4090", train="qlora", global_batch=2),
        ITSELF,
        tune(hardware="2xl40s", train="full"),
        "4",
    ),
    "compile/static-decode": (ANSWER, PINNED, ANSWER | {"concurrency": 8}, "each would be another graph"),
    "speculation/prompt-lookup": (
        ANSWER,
        ALLOWED,
        ask(ENCODER, "1xl40s", mode="infer", task="text-classification"),
        ".",
    ),
    "cache/engine-fp8": (
        ANSWER | {"concurrency": 8},
        ALLOWED,
        ANSWER | {"hardware": "1xa100-sxm-80gb", "concurrency": 8},
        "8.9",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_case_takes_it(name):
    asked, word, _, _ = CASES[name]
    axis, technique = name.split("/")
    if word is PINNED:
        asked = asked | {"pins": ((axis, technique),)}
    elif word is ALLOWED:
        asked = asked | {"pins": ((axis, technique),), "allow": (f"{axis}={technique}",)}
    assert plan_request(Request(**asked)).plan.best.choice[axis] == technique


@pytest.mark.parametrize("name", CASES)
def test_a_case_refuses_it(name):
    _, _, asked, why = CASES[name]
    axis, technique = name.split("/")
    assert find_technique(axis, technique)
    with pytest.raises(UsageError) as refused:
        plan_request(Request(**asked, pins=((axis, technique),), allow=(f"{axis}={technique}",)))
    assert re.search(why, str(refused.value)), refused.value
