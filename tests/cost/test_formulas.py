"""The memory formulas of the guides with the figures that the guides print (checklist rows M1 to M32)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from generator.cost import formulas
from generator.cost.execution import Execution
from generator.cost.infer import cache_bytes
from generator.cost.memory import OPTIMIZER_STATES, quantized_bytes, static, training_moments
from generator.cost.optimizers import state_bytes
from generator.cost.shape import shape_of
from generator.decide.candidates import HEADROOM_SHARE
from tests.cost.models import A100, LLAMA2_7B, MISTRAL_7B, TINY, model, spec

CHECKLIST = Path(__file__).resolve().parents[2] / "../shared/TECHNIQUES.md"
GIB = 2**30
B = 1_000_000_000


def shape(what=LLAMA2_7B):
    return shape_of(what, "causal-lm", 0)


def full(**more) -> Execution:
    return Execution(**{"train": "full", "weights_dtype": "float32", **more})


def test_m1_weights_in_fp32():
    assert static(shape(), full()).weights == 4 * LLAMA2_7B.params


def test_m2_mixed_precision_adds_a_16_bit_copy():
    fixed = static(shape(), full(autocast_dtype="float16"))
    assert fixed.weights + fixed.cast_weights == pytest.approx(6 * LLAMA2_7B.params, rel=0.01)


def test_m3_gradients_stay_fp32_under_autocast():
    assert static(shape(), full(autocast_dtype="bfloat16")).gradients == 4 * LLAMA2_7B.params


@pytest.mark.parametrize(
    ("name", "bytes_a_param", "tolerance"),
    [
        ("adamw", 8, 0),  # M4
        ("adamw-8bit", 2, 0.02),  # M5
        ("paged-adamw-8bit", 2, 0.02),
        ("sgd-momentum", 4, 0),  # M6
        ("sgd", 0, 0),
        ("lion", 4, 0),  # M32
        ("lion-8bit", 1, 0.02),
        ("ademamix", 12, 0),
        ("adamw-torchao-4bit", 1, 0.07),
        ("adamw-torchao-8bit", 2, 0.02),
    ],
)
def test_optimizer_states(name, bytes_a_param, tolerance):
    assert state_bytes(name, 3 * B, 4, 4096) == pytest.approx(bytes_a_param * 3 * B, rel=tolerance)


def test_m7_adafactor_keeps_rows_and_columns_only():
    """The guide's "slightly more than 4 bytes" counts a momentum that the Trainer's adafactor leaves off."""
    assert 0 < state_bytes("adafactor", 3 * B, 4, 4096) < 0.01 * 4 * 3 * B


def test_m8_total_of_mixed_precision_adamw_is_18_bytes():
    fixed = static(shape(), full(autocast_dtype="bfloat16"))
    total = fixed.weights + fixed.cast_weights + fixed.gradients + fixed.states
    assert total == pytest.approx(18 * LLAMA2_7B.params, rel=0.01)


def test_m9_m12_serving_in_16_bits_holds_no_fp32_copy():
    """The guide's 6 bytes a parameter are autocast's; what is emitted loads 2. "At most" 31 GB for 15.5B parameters."""
    run = Execution(mode="infer", weights_dtype="bfloat16")
    held = {part.name: part.value for part in model(LLAMA2_7B).estimate(run).memory}
    assert held["weights"] * GIB == pytest.approx(2 * LLAMA2_7B.params, rel=1e-6)
    octocoder = spec("gpt_bigcode", 40, 6144, 48, 1, 24576, 49152, 15_517_456_384, gated=False)
    assert quantized_bytes(shape(octocoder), run) <= 31.04e9


@pytest.mark.parametrize(("trained", "gigabytes"), [(7 * B, 84.0), (0.2 * B, 2.4)])
def test_m10_optimizer_share_of_full_training_and_of_adapters(trained, gigabytes):
    """12 bytes a trained parameter: its fp32 value and two moments."""
    assert (4 * trained + state_bytes("adamw", trained, 4, 4096)) / 1e9 == pytest.approx(gigabytes)


def test_m10_lora_pays_for_adapters_only():
    run = Execution(train="lora", lora_rank=16, weights_dtype="bfloat16", autocast_dtype="bfloat16")
    fixed = static(shape(), run)
    assert fixed.gradients + fixed.states == 12 * fixed.trained
    assert fixed.trained < 0.01 * LLAMA2_7B.params


@pytest.mark.parametrize("memory_gib", [16, 24, 40, 80])
def test_m11_a_gigabyte_or_two_of_a_device_is_not_planned_for(memory_gib):
    """Context, and the headroom that every plan leaves."""
    told = model(TINY, A100, device_memory_bytes=memory_gib * GIB).estimate(full())
    context = next(part.value for part in told.memory if part.name == "context")
    assert 1.0 <= (context + HEADROOM_SHARE * memory_gib) * GIB / 1e9 <= 3.5


@pytest.mark.parametrize(("quant", "gib"), [("none", 29.0), ("int8", 15.2), ("nf4", 9.5)])
def test_m12_m13_weights_of_a_15_5b_model(quant, gib):
    """octocoder as measured by the guide: 29.0 GiB in bf16, 15.2 in 8 and 9.5 in 4 bits (peaks of a short generation)."""
    octocoder = spec("gpt_bigcode", 40, 6144, 48, 1, 24576, 49152, 15_517_456_384, gated=False)
    run = Execution(mode="infer", weights_dtype="bfloat16", quant=quant, double_quant=False)
    weights = quantized_bytes(shape(octocoder), run) / GIB
    assert gib * 0.85 <= weights <= gib * 1.01


def test_m13_quantized_mistral():
    run = Execution(mode="infer", weights_dtype="bfloat16")
    assert quantized_bytes(shape(MISTRAL_7B), run) / GIB == pytest.approx(13.49, rel=0.01)
    packed = MISTRAL_7B.linear_params
    eight = quantized_bytes(shape(MISTRAL_7B), Execution(mode="infer", weights_dtype="bfloat16", quant="int8"))
    assert eight == pytest.approx(packed + 2 * (MISTRAL_7B.params - packed), rel=0.01)  # bits / 8 and what stays


def test_m14_kv_cache():
    """octocoder as multi-head attention, 16k tokens: 7 864 320 000 values; multi-query: under 400 MB."""
    wide = spec("octocoder", 40, 6144, 48, 48, 24576, 49152, 15 * B, gated=False)
    run = Execution(mode="infer", weights_dtype="float16", micro_batch=1)
    assert cache_bytes(shape(wide), run, 16_000) == 2 * 7_864_320_000
    narrow = spec("octocoder", 40, 6144, 48, 1, 24576, 49152, 15 * B, gated=False)
    assert cache_bytes(shape(narrow), run, 16_000) < 400e6


def test_m15_eager_scores():
    assert formulas.eager_scores(40, 16_000) == pytest.approx(20.5e9, rel=0.01)
    assert formulas.eager_scores(1, 128_000) == pytest.approx(32.8e9, rel=0.01)


def test_m16_checkpointing_keeps_one_input_a_block():
    run = full(weights_dtype="bfloat16", checkpoint_every=1, micro_batch=2, seq_len=4096)
    kept = training_moments(shape(), run, static(shape(), run))["loss"]["kept activations"]
    assert kept == 32 * 2 * 4096 * 4096 * 2


def test_m16_every_second_block_is_no_saving_over_all():
    every = [full(weights_dtype="bfloat16", checkpoint_every=n, seq_len=4096) for n in (1, 2, 4, 0)]
    kept = [training_moments(shape(), run, static(shape(), run))["loss"]["kept activations"] for run in every]
    assert kept == sorted(kept)


def test_m17_rough_activations_are_of_the_right_size():
    assert formulas.rough_activations(2048, 32, 4096, 1) == (2 * 2048 * 32 + 16 * 4096) * 2048


def test_m18_to_m22_deepspeed_estimators():
    p, layer = 2851e6, 32e6
    z2 = formulas.zero2(p, 8, offload_optimizer=True)
    assert (z2.device / GIB, z2.host / GIB) == (pytest.approx(5.31, abs=0.01), pytest.approx(127.45, abs=0.1))
    assert formulas.zero2(p, 8, offload_optimizer=False).device / GIB == pytest.approx(11.29, abs=0.02)
    both = formulas.zero3(p, layer, devices_per_node=8, offload_optimizer=True, offload_params=True)
    assert (both.device / GIB, both.host / GIB) == (pytest.approx(0.12, abs=0.01), pytest.approx(71.69, abs=0.1))
    optimizer = formulas.zero3(p, layer, devices_per_node=8, offload_optimizer=True)
    assert (optimizer.device / GIB, optimizer.host / GIB) == (
        pytest.approx(0.78, abs=0.01),
        pytest.approx(63.72, abs=0.1),
    )
    none = formulas.zero3(p, layer, devices_per_node=8)
    assert (none.device / GIB, none.host / GIB) == (pytest.approx(6.09, abs=0.01), pytest.approx(1.43, abs=0.01))
    t0 = formulas.zero3(2783e6, 65e6, devices_per_node=1)
    assert t0.device / GIB == pytest.approx(46.91, abs=0.1)


def test_m23_to_m26_buckets_pinning_consolidation():
    assert formulas.zero2_buckets(5e8, 5e8) == 9e9
    assert formulas.zero3_auto_buckets(4096) == {
        "reduce_bucket_size": 4096**2,
        "stage3_prefetch_bucket_size": int(0.9 * 4096**2),
        "stage3_param_persistence_threshold": 40960,
    }
    assert formulas.pinned_host(1e9, offload_params=True, accumulates=True) == 8e9
    assert formulas.pinned_host(1e9, offload_params=False, accumulates=False) == 4e9
    assert formulas.consolidation_host(1e9) == 8e9


def test_m27_serving_takes_up_to_a_fifth_over_the_weights():
    run = Execution(mode="infer", weights_dtype="float16", seq_len=512, new_tokens=128)
    told = model(LLAMA2_7B).estimate(run)
    weights = next(part.value for part in told.memory if part.name == "weights")
    assert 1.0 < told.peak_memory_gib / weights <= 1.2


def test_m28_bert_training_by_the_calculator_is_a_lower_bound():
    bert = spec("bert", 12, 768, 12, 12, 3072, 28996, 108_310_272, gated=False, kind="encoder")
    fixed = static(shape_of(bert, "text-classification", 2), full())
    assert (fixed.weights + fixed.gradients + fixed.states) / GIB == pytest.approx(1.61, rel=0.02)


def test_m29_global_batch():
    assert formulas.global_batch(8, 32, 4) == 1024
    assert formulas.global_batch(8, 1, 4) == 32


def test_m30_a_backward_pass_is_two_forward_passes():
    """Recomputing every block adds one pass to three."""
    products = [
        next(part.value for part in model(LLAMA2_7B).estimate(run).time if part.name == "matrix products")
        for run in (full(weights_dtype="bfloat16", checkpoint_every=every, seq_len=4096) for every in (1, 0))
    ]
    head = LLAMA2_7B.vocab * LLAMA2_7B.hidden / LLAMA2_7B.params  # is not recomputed
    assert products[0] / products[1] == pytest.approx(4 / 3, rel=head)


def test_m31_loading():
    assert formulas.loading_host(14e9, 5e9, 2, "naive") == 56e9
    assert formulas.loading_host(14e9, 5e9, 1, "sharded") == 19e9
    assert formulas.loading_host(14e9, 5e9, 1, "meta") == 14e9


def test_m32_fused_updates_store_no_gradients_and_projections_store_less():
    assert not OPTIMIZER_STATES["lomo"].stores_gradients
    assert static(shape(), full(optimizer="adalomo")).gradients == 0
    for name in ("galore", "apollo"):
        assert state_bytes(name, B, 4, 4096) < 0.1 * state_bytes("adamw", B, 4, 4096)


def test_every_optimizer_has_a_source():
    for name, kind in OPTIMIZER_STATES.items():
        assert kind.source, name
        assert state_bytes(name, 1e6, 4.0, TINY.hidden) >= 0


def test_every_row_of_the_checklist_has_its_test():
    if not CHECKLIST.is_file():
        pytest.skip("the checklist of the guides is not beside this repository")
    rows = re.findall(r"^\| (M\d+) \|", CHECKLIST.read_text(encoding="utf-8"), re.MULTILINE)
    here = Path(__file__).read_text(encoding="utf-8")
    named = {int(n) for n in re.findall(r"_m(\d+)(?=_)", here) + re.findall(r"# M(\d+)", here)}
    for low, high in re.findall(r"_m(\d+)_to_m(\d+)_", here):
        named |= set(range(int(low), int(high) + 1))
    assert rows and {int(row[1:]) for row in rows} == named
