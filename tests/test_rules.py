"""The decision rules of the guides, each with a case that takes it and one that does not.

The numbers are those of the project's checklist of the guides (validity gates R0xx, fit R1xx, precision R3xx, speed R4xx,
CPU R5xx, inference R6xx), as far as they concern one device.
"""

from __future__ import annotations

from functools import cache

import pytest
from making import A100, H100, SMALL, T4, V100, case, cost, cpu_device, gpu, llama

from generator.errors import NothingFits, UsageError
from generator.plan import Plan, decide

BIG_GPU = gpu("9.0", 640, 989, 3.35e12, "a very large GPU")
PASCAL = gpu("6.1", 24, 12, 0.35e12, "Tesla P40")
PLAIN_CPU, BF16_CPU = cpu_device(16, 64), cpu_device(16, 64, bf16=True)
PLAIN, WITH_BF16, WITH_AMX = (
    ("avx2", "avx512f", "avx512_vnni"),
    ("avx512f", "avx512_bf16"),
    ("avx512f", "amx_bf16", "amx_tile"),
)
RTX_4090 = gpu("8.9", 24, 165, 1.0e12, "RTX 4090")


@cache
def _plan(device, model, features, items) -> Plan:
    of = case(device, model, features=features, **dict(items))
    return decide(of, cost(of))


def plan(device, model=None, features=PLAIN, **workload) -> Plan:
    return _plan(device, model or llama(**SMALL), features, tuple(workload.items()))


def chosen(axis: str, *arguments, **workload) -> str:
    return plan(*arguments, **workload).best.choice[axis]


def refused(axis: str, name: str, words: str, *arguments, **workload) -> None:
    """Pinning it is an error that says why, and unpinned the plan records the same words."""
    with pytest.raises(UsageError, match=words):
        plan(*arguments, **workload, pins=((axis, name),))
    decision = next(d for d in plan(*arguments, **workload).decisions if d.axis == axis)
    assert any(words in r.why for r in decision.rejected if r.name == name)


def pinned(axis: str, name: str, *arguments, **workload) -> Plan:
    found = plan(*arguments, **workload, pins=((axis, name),))
    assert found.best.choice[axis] == name
    return found


def emitted(found: Plan, place: str = "training_arguments") -> dict[str, str]:
    return {a.name: a.code for a in getattr(found.edits, place)}


# ---- validity gates


def test_r001_one_half_precision_at_a_time():
    for device in (H100, T4, PLAIN_CPU):
        assert not {"bf16", "fp16"} <= set(emitted(plan(device)))
    with pytest.raises(UsageError, match="contradict"):
        plan(H100, pins=(("precision", "bf16"), ("precision", "tf32")))


def test_r002_bf16_needs_hardware_that_has_it():
    for device in (T4, V100):
        refused("precision", "bf16", "compute capability 8.0", device)
    pinned("precision", "bf16", A100)


def test_r003_without_an_accelerator_bf16_needs_the_instructions():
    refused("precision", "bf16", "no bf16 instructions", PLAIN_CPU)
    pinned("precision", "bf16", BF16_CPU, features=WITH_BF16)


def test_r004_tf32_only_where_it_exists():
    refused("precision", "tf32", "8.0", T4)
    refused("precision", "tf32", "NVIDIA", PLAIN_CPU)
    assert "tf32" not in emitted(plan(T4)) and emitted(plan(A100))["tf32"] == "True"


def test_r015_quantized_training_has_adapters_and_is_not_compiled():
    refused("compile", "default", "quantized", H100, train="qlora")
    pinned("compile", "default", H100, train="lora", task="causal-lm")
    found = plan(H100, train="qlora")
    assert "get_peft_model" in " ".join(found.edits.after_model) or "peft_config" in emitted(found, "trainer_arguments")


def test_r019_prefetch_only_with_workers():
    with_workers = emitted(pinned("data-loading", "workers", H100))
    assert with_workers["dataloader_prefetch_factor"] == "2" and int(with_workers["dataloader_num_workers"]) > 0
    assert "dataloader_prefetch_factor" not in emitted(pinned("data-loading", "in-process", H100))


def test_r020_low_rank_optimizers_name_their_targets():
    for name in ("galore", "apollo"):
        assert "optim_target_modules" in emitted(pinned("optimizer", name, H100))
    assert "optim_target_modules" not in emitted(plan(H100))


def test_r021_r022_only_optimizers_that_exist():
    assert emitted(plan(H100))["optim"] == '"adamw_torch_fused"'
    with pytest.raises(UsageError, match="no such technique"):
        plan(H100, pins=(("optimizer", "adamw_apex_fused"),))


def test_r035_r034_no_compiled_decoding_for_what_cannot_be_compiled():
    served = pinned("quantization", "bnb-nf4", H100, mode="infer")
    assert served.best.choice["compile"] == "off" and served.best.choice["cache"] == "dynamic"
    assert chosen("compile", H100, mode="infer") == "static-decode"


def test_r037_r038_flash_attention_needs_16_bits_and_ampere():
    for device in (T4, PLAIN_CPU):
        refused("attention", "flash-attention", "8.0", device)
    refused("attention", "flash-attention", "kernels", H100)
    assert chosen("attention", T4) == chosen("attention", PLAIN_CPU) == "sdpa"


def test_r041_quantizers_that_raise_are_not_offered():
    with pytest.raises(UsageError, match="no such technique"):
        plan(H100, mode="infer", pins=(("quantization", "hqq"),))


# ---- does it fit


def test_r102_what_fits_gets_no_memory_technique():
    choice = plan(BIG_GPU).best.choice
    assert choice["checkpointing"] == "off" and choice["optimizer"] == "adamw-fused" and choice["precision"] == "bf16"


def test_r103_accumulation_is_what_the_largest_fitting_micro_batch_leaves():
    # 32 sequences at once do not fit: the largest divisor that does is taken, not one below it
    found = plan(RTX_4090, llama(**SMALL), seq_len=8192, task="causal-lm")
    run = found.best.execution
    assert run.accumulation > 1 and run.micro_batch * run.accumulation == 32
    roomy = plan(BIG_GPU, llama(**SMALL), seq_len=2048, task="causal-lm")
    assert roomy.best.execution.accumulation == 1


def test_r104_checkpointing_when_activations_do_not_fit():
    tight = gpu("9.0", 46, 989, 3.35e12, "a 46 GiB GPU")
    assert chosen("checkpointing", tight, llama(), train="lora", seq_len=8192, task="causal-lm") != "off"
    assert chosen("checkpointing", BIG_GPU, llama(), train="lora", seq_len=8192, task="causal-lm") == "off"


def test_r104_partial_checkpointing_when_room_is_left():
    kinds = {
        chosen(
            "checkpointing", gpu("9.0", gib, 989, 3.35e12, "GPU"), llama(), train="lora", seq_len=8192, global_batch=1
        )
        for gib in (24, 28, 32, 36, 40, 48, 64, 80)
    }
    assert "off" in kinds and len(kinds) >= 3, kinds


def test_r106_small_optimizer_states_only_when_nothing_else_fits():
    model = llama(hidden=2048, layers=24, heads=16, kv_heads=8, ffn=8192, vocab=50304)
    small = plan(gpu("9.0", 24, 989, 3.35e12, "a 24 GiB GPU"), model, task="causal-lm", seq_len=1024, host_gib=20)
    assert small.best.risk > 0 and small.best.choice["optimizer"] != "sgd"
    assert chosen("optimizer", H100, model, task="causal-lm", seq_len=1024) == "adamw-fused"


def test_r107_a_model_that_is_too_large_to_serve_is_quantized():
    assert chosen("quantization", gpu("8.9", 12, 120, 0.5e12, "a 12 GiB GPU"), llama(), mode="infer") != "none"
    assert chosen("quantization", H100, llama(), mode="infer") == "none"


def test_r112_r301_to_r303_precision_by_device():
    assert chosen("precision", H100) == chosen("precision", A100) == "bf16"
    assert chosen("precision", T4) == chosen("precision", V100) == "fp16"
    assert chosen("precision", PASCAL) == "fp32"


def test_r305_bf16_models_that_overflow_are_not_trained_in_fp16():
    t5 = llama(**SMALL, torch_dtype="bfloat16")
    assert chosen("precision", T4, t5) == "fp16"  # a Llama's activations stay small
    from dataclasses import replace

    from generator.techniques.precision.fp16 import lacks_fp16

    of = case(T4, replace(t5, model_type="t5"))
    assert "overflows" in lacks_fp16(of)


# ---- speed


def test_r401_workers_come_from_the_usable_cpus():
    def count(cores):
        of = case(H100, llama(**SMALL), cores=cores, pins=(("data-loading", "workers"),))
        return int(emitted(decide(of, cost(of)))["dataloader_num_workers"])

    assert count(16) == 4 and count(3) == 2
    with pytest.raises(UsageError, match="no core is free"):
        count(1)


def test_r402_fused_adamw_is_the_default():
    assert chosen("optimizer", H100) == chosen("optimizer", PLAIN_CPU) == "adamw-fused"


def test_r403_sdpa_not_eager():
    assert chosen("attention", H100) == "sdpa"
    assert pinned("attention", "eager", H100).best.estimate.step_seconds > plan(H100).best.estimate.step_seconds


def test_r404_liger_where_it_has_kernels():
    assert chosen("loss", H100, llama(), train="lora", task="causal-lm") == "liger"
    refused("loss", "liger", "Triton", PLAIN_CPU, task="causal-lm")


def test_r405_compile_for_long_runs_on_ampere_only():
    short = {"task": "causal-lm", "seq_len": 512, "max_steps": 3}
    assert chosen("compile", BF16_CPU, features=WITH_BF16, **short) == "off"
    refused("compile", "default", "Ampere", T4)
    why = {
        r.name: r.why
        for d in plan(BF16_CPU, features=WITH_BF16, **short).decisions
        if d.axis == "compile"
        for r in d.rejected
    }
    assert "do not earn back" in why["default"]


def test_r406_texts_of_unequal_length_are_grouped():
    lengths = {"task": "text-classification", "fill_mean": 0.2, "fill_long": 0.6}
    assert chosen("packing", T4, **lengths) == "group-by-length"
    assert chosen("packing", T4, task="text-classification", fill_mean=1.0, fill_long=1.0) == "padded"


def test_r408_quality_options_are_never_chosen_for_speed():
    asked = {
        "schedule-free",
        "ademamix",
        "lion-8bit",
        "grokadamw",
        "stable-adamw",
        "sgd",
        "lomo",
        "adalomo",
        "galore",
        "apollo",
    }
    for device in (H100, T4, RTX_4090, PLAIN_CPU):
        try:
            assert chosen("optimizer", device, llama(), train="full", task="causal-lm") not in asked
        except NothingFits:
            continue


# ---- CPU


def test_r501_cpu_precision_follows_the_instructions():
    assert chosen("precision", PLAIN_CPU) == "fp32"
    assert chosen("precision", BF16_CPU, features=WITH_BF16) == "bf16"
    assert chosen("precision", BF16_CPU, features=WITH_AMX) == "bf16"


def test_r503_threads_are_the_usable_cpus():
    from dataclasses import replace

    of = case(PLAIN_CPU, llama(**SMALL), cores=16)
    assert decide(of, cost(of)).best.choice["cpu-threads"] == "default"
    quota = replace(of, hardware=replace(of.hardware, cpu=replace(of.hardware.cpu, budget=4, quota=4.0)))
    found = decide(quota, cost(quota))
    assert found.best.choice["cpu-threads"] == "budget"
    assert ("OMP_NUM_THREADS", "4") in found.edits.environment


def test_r508_nothing_that_is_gone_is_emitted():
    gone = {
        "no_cuda",
        "use_ipex",
        "jit_mode_eval",
        "gradient_checkpointing",
        "group_by_length",
        "torch_dtype",
        "warmup_ratio",
    }
    for device in (H100, T4, PLAIN_CPU):
        for workload in ({}, {"train": "lora"}, {"task": "sft"}):
            found = plan(device, **workload)
            assert not gone & (set(emitted(found)) | set(emitted(found, "model_arguments")))


# ---- inference


def test_r601_served_in_16_bits_where_the_device_has_them():
    assert chosen("precision", H100, mode="infer") == "bf16"
    assert chosen("precision", PLAIN_CPU, mode="infer") == "fp32"


def test_r602_what_fits_gets_sdpa_a_static_cache_and_compilation():
    choice = plan(H100, llama(), mode="infer").best.choice
    assert (choice["attention"], choice["cache"], choice["compile"]) == ("sdpa", "static", "static-decode")
    assert plan(PLAIN_CPU, mode="infer").best.choice["compile"] == "off"


def test_r603_no_quantization_where_memory_is_enough():
    assert chosen("quantization", H100, llama(), mode="infer") == "none"
