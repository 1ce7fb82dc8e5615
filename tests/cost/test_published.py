"""Peak memory against published runs: Hugging Face Trainer on A100-80GB (fms-acceleration, benchmark CSVs of 2024).

Torch's own peak (max_memory_allocated), decimal gigabytes; sequence 4096, checkpointing, FlashAttention-2, foreach AdamW.
"""

from __future__ import annotations

import pytest

from generator.cost.execution import Execution
from tests.cost.models import LLAMA2_70B, MISTRAL_7B, model

COMMON = {
    "seq_len": 4096,
    "weights_dtype": "bfloat16",
    "attention": "flash",
    "checkpoint_every": 1,
    "optimizer_fused": False,
    "loss_copies": "shifted",
    "repeats_keys": True,
    "fsdp_version": 1,
}
LORA = {
    "train": "lora",
    "lora_rank": 16,
    "lora_targets": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "lora_dropout": 0.05,
}
QLORA = {**LORA, "quant": "nf4", "autocast_dtype": "bfloat16"}
SHARD = {"strategy": "fsdp_full_shard"}
RUNS = [
    (MISTRAL_7B, {"micro_batch": 4}, 72.44),
    (MISTRAL_7B, {"micro_batch": 4, "dp": 2, **SHARD}, 36.23),
    (MISTRAL_7B, {"micro_batch": 4, "dp": 2, "autocast_dtype": "bfloat16", **SHARD}, 72.44),
    (MISTRAL_7B, {"micro_batch": 16, "dp": 4, "autocast_dtype": "bfloat16", "fused_kernels": "foak", **SHARD}, 57.30),
    (MISTRAL_7B, {"micro_batch": 4, **LORA}, 25.65),
    (MISTRAL_7B, {"micro_batch": 8, **LORA}, 36.64),
    (MISTRAL_7B, {"micro_batch": 2, "dp": 2, **SHARD, **LORA}, 15.25),
    (MISTRAL_7B, {"micro_batch": 4, **QLORA}, 15.32),
    (MISTRAL_7B, {"micro_batch": 8, **QLORA}, 26.31),
    (MISTRAL_7B, {"micro_batch": 32, "fused_kernels": "foak", **QLORA}, 74.37),
    (MISTRAL_7B, {"micro_batch": 4, "dp": 2, **SHARD, **QLORA}, 16.17),
    (LLAMA2_70B, {"micro_batch": 4, **QLORA, "repeats_keys": False}, 68.13),
]


@pytest.mark.parametrize(("spec", "what", "measured_gb"), RUNS)
def test_peak_memory_of_published_runs(spec, what, measured_gb):
    estimate = model(spec).estimate(Execution(**{**COMMON, **what}))
    assert estimate.allocator_peak_gib * 2**30 / 1e9 == pytest.approx(measured_gb, rel=0.025)


SPEED = [
    ({"micro_batch": 4}, 3063),
    ({"micro_batch": 4, **LORA}, 3319),
    ({"micro_batch": 8, **QLORA}, 3616),
    ({"micro_batch": 8, "fused_kernels": "foak", **QLORA}, 4141),
]


@pytest.mark.parametrize(("what", "tokens_per_s"), SPEED)
def test_speed_of_published_runs(what, tokens_per_s):
    estimate = model(MISTRAL_7B).estimate(Execution(**{**COMMON, **what}))
    assert estimate.tokens_per_second == pytest.approx(tokens_per_s, rel=0.10)


def test_a_run_that_ran_out_does_not_fit_and_one_that_ran_does():
    cost = model(MISTRAL_7B, device_memory_bytes=int(0.99 * 80 * 2**30))
    ran_out = Execution(**{**COMMON, "micro_batch": 16, "fused_kernels": "foak", "autocast_dtype": "bfloat16"})
    ran = Execution(**{**COMMON, **QLORA, "micro_batch": 32, "fused_kernels": "foak"})
    assert not cost.estimate(ran_out).fits
    assert cost.estimate(ran).fits
