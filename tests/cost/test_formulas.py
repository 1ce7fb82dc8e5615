"""The memory formulas of the guides with the figures that the guides print (checklist rows M1 to M32)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from random import Random

import pytest
from making import H100, case, llama

from generator.case.strategies import SEQUENCE_FORMS, STRATEGIES
from generator.cost.activations import READ_FIELDS, compute_block_activations
from generator.cost.decode import compute_cache_bytes
from generator.cost.device import compute_rates
from generator.cost.execution import Execution
from generator.cost.host import compute_loading
from generator.cost.loss import compute_loss_bytes
from generator.cost.memory import compute_training_moments
from generator.cost.optimizers import compute_state_bytes
from generator.cost.shape import build_shape
from generator.cost.sharding import keeps_checkpointed_inputs
from generator.cost.static_memory import STATIC_FIELDS, compute_static_memory, count_trained_params, identify_memory
from generator.cost.time import DEVICE_FIELDS, compute_device_seconds
from generator.cost.weights import compute_stored_bytes
from generator.decide.candidates import split_batch
from generator.decide.space import HEADROOM_SHARE
from generator.estimate.optimizers import list_optimizer_states
from generator.techniques.base import find_technique
from hwdetect import catalog
from tests.cost import deepspeed_estimators as oracles
from tests.cost.models import A100, CPU2, LLAMA2_7B, MISTRAL_7B, TINY, model, spec

STATES = list_optimizer_states()
CHECKLIST = Path(__file__).resolve().parents[2] / "../shared/TECHNIQUES.md"
GIB = 2**30
B = 1_000_000_000


def shape(what=LLAMA2_7B):
    return build_shape(what, "causal-lm", 0)


def full(**more) -> Execution:
    return Execution(**{"train": "full", "weights_dtype": "float32", **more})


def test_m1_weights_in_fp32():
    assert compute_static_memory(shape(), full()).weights == 4 * LLAMA2_7B.params


def test_m2_mixed_precision_adds_a_16_bit_copy():
    fixed = compute_static_memory(shape(), full(autocast_dtype="float16"))
    assert fixed.weights + fixed.cast_weights == pytest.approx(6 * LLAMA2_7B.params, rel=0.01)


def test_m3_gradients_stay_fp32_under_autocast():
    assert compute_static_memory(shape(), full(autocast_dtype="bfloat16")).gradients == 4 * LLAMA2_7B.params


@pytest.mark.parametrize(
    ("name", "bytes_per_param", "tolerance"),
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
def test_optimizer_states(name, bytes_per_param, tolerance):
    assert compute_state_bytes(STATES[name], 3 * B, 4, 4096) == pytest.approx(bytes_per_param * 3 * B, rel=tolerance)


@pytest.mark.parametrize(
    ("name", "bytes_per_param"),
    [
        ("adamw", 4),
        ("ademamix", 12),  # bitsandbytes keeps them in 32 bits
        ("stable-adamw", 6),  # torch-optimi adds what rounding loses (Kahan)
    ],
)
def test_optimizer_states_of_16_bit_weights(name, bytes_per_param):
    """By the dtypes of the states after a step: ademamix was planned with 6 bytes, stable-adamw with 4."""
    assert compute_state_bytes(STATES[name], 3 * B, 2, 4096) == bytes_per_param * 3 * B


def test_m7_adafactor_keeps_rows_and_columns_only():
    """The guide's "slightly more than 4 bytes" counts a momentum that the Trainer's adafactor leaves off."""
    assert 0 < compute_state_bytes(STATES["adafactor"], 3 * B, 4, 4096) < 0.01 * 4 * 3 * B


def test_m8_total_of_mixed_precision_adamw_is_18_bytes():
    fixed = compute_static_memory(shape(), full(autocast_dtype="bfloat16"))
    total = fixed.weights + fixed.cast_weights + fixed.gradients + fixed.states
    assert total == pytest.approx(18 * LLAMA2_7B.params, rel=0.01)


def test_m9_m12_serving_in_16_bits_holds_no_fp32_copy():
    """The guide's 6 bytes a parameter are autocast's; what is emitted loads 2. "At most" 31 GB for 15.5B parameters."""
    run = Execution(mode="infer", weights_dtype="bfloat16")
    held = {part.name: part.value for part in model(LLAMA2_7B).estimate(run).memory}
    assert held["weights"] * GIB == pytest.approx(2 * LLAMA2_7B.params, rel=1e-6)
    octocoder = spec("gpt_bigcode", 40, 6144, 48, 1, 24576, 49152, 15_517_456_384, gated=False)
    assert compute_stored_bytes(shape(octocoder), run) <= 31.04e9


@pytest.mark.parametrize(("trained", "gigabytes"), [(7 * B, 84.0), (0.2 * B, 2.4)])
def test_m10_optimizer_share_of_full_training_and_of_adapters(trained, gigabytes):
    """12 bytes a trained parameter: its fp32 value and two moments."""
    assert (4 * trained + compute_state_bytes(STATES["adamw"], trained, 4, 4096)) / 1e9 == pytest.approx(gigabytes)


def test_m10_lora_pays_for_adapters_only():
    run = Execution(train="lora", lora_rank=16, weights_dtype="bfloat16", autocast_dtype="bfloat16")
    fixed = compute_static_memory(shape(), run)
    assert fixed.gradients + fixed.states == 12 * fixed.trained
    assert fixed.trained < 0.01 * LLAMA2_7B.params


@pytest.mark.parametrize("memory_gib", [16, 24, 40, 80])
def test_m11_a_gigabyte_or_two_of_a_device_is_not_planned_for(memory_gib):
    """Context, and the headroom that every plan leaves."""
    estimate = model(TINY, A100, device_memory_bytes=memory_gib * GIB).estimate(full())
    context = next(part.value for part in estimate.memory if part.name == "context")
    assert 1.0 <= (context + HEADROOM_SHARE * memory_gib) * GIB / 1e9 <= 3.5


@pytest.mark.parametrize(("quant", "gib"), [("none", 29.0), ("int8", 15.2), ("nf4", 9.5)])
def test_m12_m13_weights_of_a_15_5b_model(quant, gib):
    """octocoder as measured by the guide: 29.0 GiB in bf16, 15.2 in 8 and 9.5 in 4 bits (peaks of a short generation)."""
    octocoder = spec("gpt_bigcode", 40, 6144, 48, 1, 24576, 49152, 15_517_456_384, gated=False)
    run = Execution(mode="infer", weights_dtype="bfloat16", quant=quant, double_quant=False)
    weights = compute_stored_bytes(shape(octocoder), run) / GIB
    assert gib * 0.85 <= weights <= gib * 1.01


def test_m13_quantized_mistral():
    run = Execution(mode="infer", weights_dtype="bfloat16")
    assert compute_stored_bytes(shape(MISTRAL_7B), run) / GIB == pytest.approx(13.49, rel=0.01)
    packed = MISTRAL_7B.linear_params
    eight = compute_stored_bytes(shape(MISTRAL_7B), Execution(mode="infer", weights_dtype="bfloat16", quant="int8"))
    assert eight == pytest.approx(packed + 2 * (MISTRAL_7B.params - packed), rel=0.01)  # bits / 8 and what stays


def test_m14_kv_cache():
    """octocoder as multi-head attention, 16k tokens: 7 864 320 000 values; multi-query: under 400 MB."""
    wide = spec("octocoder", 40, 6144, 48, 48, 24576, 49152, 15 * B, gated=False)
    run = Execution(mode="infer", weights_dtype="float16", micro_batch=1)
    assert compute_cache_bytes(shape(wide), run, 16_000) == 2 * 7_864_320_000
    narrow = spec("octocoder", 40, 6144, 48, 1, 24576, 49152, 15 * B, gated=False)
    assert compute_cache_bytes(shape(narrow), run, 16_000) < 400e6


def test_m15_eager_scores():
    """The guide counts the scores in 16 bits; training keeps the float32 softmax beside its 16-bit cast: three times that."""
    assert oracles.estimate_eager_scores(40, 16_000) == pytest.approx(20.5e9, rel=0.01)
    run = full(weights_dtype="bfloat16", attention="eager", seq_len=16_000)
    block = compute_block_activations(shape(), run)
    assert block.saved_scores * 16_000**2 == 3 * oracles.estimate_eager_scores(LLAMA2_7B.heads, 16_000)


def test_m16_checkpointing_keeps_one_input_a_block():
    run = full(weights_dtype="bfloat16", checkpoint_every=1, micro_batch=2, seq_len=4096)
    kept = compute_training_moments(shape(), run, compute_static_memory(shape(), run))["loss"]["kept activations"]
    assert kept == 32 * 2 * 4096 * 4096 * 2


def test_m16_every_second_block_is_no_saving_over_all():
    every = [full(weights_dtype="bfloat16", checkpoint_every=n, seq_len=4096) for n in (1, 2, 4, 0)]
    kept = [
        compute_training_moments(shape(), run, compute_static_memory(shape(), run))["loss"]["kept activations"]
        for run in every
    ]
    assert kept == sorted(kept)


def test_m17_rough_activations_are_of_the_right_size():
    run = full(weights_dtype="bfloat16", attention="eager", seq_len=2048)
    block = compute_block_activations(shape(), run)
    rough = oracles.estimate_rough_activations(2048, 32, 4096, 1)
    assert 1 < (block.saved + block.saved_scores * 2048) * 2048 / rough < 4


LARGEST = 32e6


def hold(run: Execution, what) -> float:
    """Bytes of model states on one device while it updates."""
    static = compute_static_memory(shape(what), run)
    return static.weights + static.gradients + static.states + static.step_temporary


@pytest.mark.parametrize(
    ("need", "device_gib", "host_gib"),
    [
        (oracles.estimate_zero2(2851e6, 8, offload_optimizer=True), 5.31, 127.45),
        (oracles.estimate_zero2(2851e6, 8, offload_optimizer=False), 11.29, None),
        (
            oracles.estimate_zero3(2851e6, LARGEST, devices_per_node=8, offload_optimizer=True, offload_params=True),
            0.12,
            71.69,
        ),
        (oracles.estimate_zero3(2851e6, LARGEST, devices_per_node=8, offload_optimizer=True), 0.78, 63.72),
        (oracles.estimate_zero3(2851e6, LARGEST, devices_per_node=8), 6.09, 1.43),
        (oracles.estimate_zero3(2783e6, 65e6, devices_per_node=1), 46.91, None),
    ],
)
def test_the_oracle_prints_what_deepspeed_prints(need, device_gib, host_gib):
    assert need.device / GIB == pytest.approx(device_gib, abs=0.1)
    assert host_gib is None or need.host / GIB == pytest.approx(host_gib, abs=0.1)


def test_m18_to_m22_model_states_under_deepspeed():
    """Of 2851M parameters on 8 devices. Stage 2 to the byte; stage 3 has 2 bytes a parameter more than DeepSpeed's own figure,
    the shard of 16-bit gradients."""
    p = 2851e6
    what = replace(LLAMA2_7B, params=int(p))
    zero = Execution(weights_dtype="bfloat16", dp=8, strategy="zero2")
    assert hold(zero, what) == pytest.approx(oracles.estimate_zero2(p, 8, offload_optimizer=False).device)  # M19
    off = replace(zero, offload_optimizer="cpu")
    assert hold(off, what) == pytest.approx(oracles.estimate_zero2(p, 8, offload_optimizer=True).device)  # M18
    third = replace(zero, strategy="zero3")
    states = oracles.estimate_zero3(p, 0, devices_per_node=8).device
    assert hold(third, what) == pytest.approx(states + 2 * p / 8)  # M22
    off = replace(third, offload_optimizer="cpu")
    assert hold(off, what) == pytest.approx(
        oracles.estimate_zero3(p, 0, devices_per_node=8, offload_optimizer=True).device
    )
    assert hold(replace(off, offload_params="cpu"), what) == 0  # M20: what is left is gathered


def test_m20_the_host_holds_offloaded_states():
    """Without DeepSpeed's allowance of a half, and with what it leaves out: sums of gradients beside the masters' gradients."""
    p = 2851e6
    what = replace(LLAMA2_7B, params=int(p))
    run = Execution(weights_dtype="bfloat16", sums_dtype="float32", dp=8, strategy="zero3", offload_optimizer="cpu")
    held = {item.name: item.value * GIB for item in model(what, host_memory_bytes=1 << 40).estimate(run).host_memory}
    need = oracles.estimate_zero3(p, LARGEST, devices_per_node=8, offload_optimizer=True)
    offloaded = held["offloaded optimizer"] + held["offloaded gradients"]
    assert offloaded == pytest.approx(need.host / oracles.HOST_FACTOR + 4 * p)


def test_m23_buckets_of_overlap_comm():
    assert oracles.estimate_zero2_buckets(5e8, 5e8) == 9e9  # DeepSpeed's default sizes
    elements = STRATEGIES["zero2"].bucket_elements
    fixed = compute_static_memory(shape(), Execution(weights_dtype="bfloat16", dp=8, strategy="zero2"))
    assert fixed.reduce_buckets == oracles.estimate_zero2_buckets(elements, elements)


def test_m24_auto_buckets_of_zero3_are_what_transformers_fills_in():
    """They grow with the width, not with a constant of ours; beside what stays gathered they are small."""
    pytest.importorskip("deepspeed")
    from types import SimpleNamespace

    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    emitted = find_technique("parallelism", "zero3").settings()
    zero = {name.removeprefix("zero_optimization."): value for name, value in emitted.items()}
    config = HfTrainerDeepSpeedConfig({"zero_optimization": {"stage": 3, **zero}})
    config.mismatches = []
    arguments = SimpleNamespace(get_warmup_steps=lambda steps: 0)
    config.trainer_config_finalize(arguments, SimpleNamespace(config=SimpleNamespace(hidden_size=4096)), 1)
    filled = config.config["zero_optimization"]
    assert filled["reduce_bucket_size"] == 4096**2
    assert filled["stage3_prefetch_bucket_size"] == int(0.9 * 4096**2)
    assert filled["stage3_param_persistence_threshold"] == 40960
    live = filled["stage3_max_live_parameters"]
    assert live == STRATEGIES["zero3"].live_elements
    assert filled["reduce_bucket_size"] + filled["stage3_prefetch_bucket_size"] < 0.04 * live


def test_m25_page_locked_host_memory():
    """memory.rst says 6 bytes a parameter; in the source it is 10: weights of 16 bits, gradients, and their sums in float32."""
    run = Execution(
        weights_dtype="bfloat16",
        sums_dtype="float32",
        dp=8,
        strategy="zero3",
        offload_optimizer="cpu",
        offload_params="cpu",
    )
    held = {
        item.name: item.value * GIB for item in model(LLAMA2_7B, host_memory_bytes=1 << 40).estimate(run).host_memory
    }
    p = LLAMA2_7B.params
    assert held["offloaded weights"] + held["offloaded gradients"] == pytest.approx(10 * p)


def test_m26_nothing_is_consolidated_afterwards():
    """zero_to_fp32.py would hold the float32 checkpoint twice on the host: the emitted job gathers 16-bit weights as it saves."""
    assert (
        find_technique("parallelism", "zero3").settings()["zero_optimization.stage3_gather_16bit_weights_on_model_save"]
        is True
    )


def test_m27_serving_takes_up_to_a_fifth_over_the_weights():
    run = Execution(mode="infer", weights_dtype="float16", seq_len=512, new_tokens=128)
    estimate = model(LLAMA2_7B).estimate(run)
    weights = next(part.value for part in estimate.memory if part.name == "weights")
    assert 1.0 < estimate.peak_memory_gib / weights <= 1.2


def test_m28_bert_training_by_the_calculator_is_a_lower_bound():
    bert = spec("bert", 12, 768, 12, 12, 3072, 28996, 108_310_272, gated=False, kind="encoder")
    fixed = compute_static_memory(build_shape(bert, "text-classification", 2), full())
    assert (fixed.weights + fixed.gradients + fixed.states) / GIB == pytest.approx(1.61, rel=0.02)


def test_a_head_for_many_labels_is_weights_and_no_vocabulary():
    """With 1,024 labels and more an encoder was charged the logits of every token, and its head was in no sum."""
    bert = spec("bert", 12, 768, 12, 12, 3072, 28996, 108_310_272, gated=False, kind="encoder")
    few, many = (build_shape(bert, "text-classification", labels) for labels in (2, 30_000))
    assert many.params - few.params == 29_998 * 768 and few.params == bert.params + 2 * 768
    run = full(micro_batch=32, seq_len=256)
    assert compute_loss_bytes(many, run, 8192, 4, 4) == compute_loss_bytes(few, run, 8192, 4, 4)
    lora = Execution(train="lora", lora_rank=8, weights_dtype="float32")
    assert count_trained_params(many, lora) - count_trained_params(few, lora) == 29_998 * 768


def test_a_decoder_makes_logits_of_every_token_for_labels_too():
    few, many = (build_shape(LLAMA2_7B, "text-classification", labels) for labels in (2, 5_002))
    run = full(micro_batch=8, seq_len=512)
    added = compute_loss_bytes(many, run, 4096, 4, 4) - compute_loss_bytes(few, run, 4096, 4, 4)
    assert added == 4096 * 5_000 * 4  # once: of the hidden states, then of their gradient


def test_m29_global_batch():
    splits = split_batch(case(H100, llama(), devices=32, global_batch=1024), 32)
    assert (8, 4) in splits
    assert {micro * accumulation * 32 for micro, accumulation in splits} == {1024}
    assert (8, 4) in split_batch(case(H100, llama(), global_batch=32), 1)


def test_m30_a_backward_pass_is_two_forward_passes():
    """Recomputing every block adds one pass to three."""
    products = [
        next(part.value for part in model(LLAMA2_7B).estimate(run).time if part.name == "matrix products")
        for run in (full(weights_dtype="bfloat16", checkpoint_every=every, seq_len=4096) for every in (1, 0))
    ]
    head = LLAMA2_7B.vocab * LLAMA2_7B.hidden / LLAMA2_7B.params  # is not recomputed
    assert products[0] / products[1] == pytest.approx(4 / 3, rel=head)


@pytest.mark.parametrize("processes", [1, 2])
def test_m31_loading(processes):
    """One copy for each process and the shard that is read; never the two copies of loading over random weights."""
    what = replace(LLAMA2_7B, params=7 * B)
    run = Execution(weights_dtype="bfloat16", dp=processes, strategy="ddp" if processes > 1 else "none")
    held = sum(compute_loading(shape(what), run, processes).values()) * GIB
    assert held <= oracles.estimate_loading(14e9, 5.05e9, processes, "sharded")
    assert held >= oracles.estimate_loading(14e9, 5e9, processes, "meta")
    assert held < oracles.estimate_loading(14e9, 5e9, processes, "naive")


def test_m32_fused_updates_store_no_gradients_and_projections_store_less():
    assert not STATES["lomo"].stores_gradients
    assert compute_static_memory(shape(), full(optimizer=STATES["adalomo"])).gradients == 0
    for name in ("galore", "apollo"):
        assert compute_state_bytes(STATES[name], B, 4, 4096) < 0.1 * compute_state_bytes(STATES["adamw"], B, 4, 4096)


@pytest.mark.parametrize("name", ["galore", "apollo"])
def test_projected_states_are_those_of_the_emitted_rank_and_embeddings_are_not_projected(name):
    assert f"rank={STATES[name].rank}" in find_technique("optimizer", name).arguments["optim_args"]
    states = compute_static_memory(shape(), full(optimizer=STATES[name])).states
    outside = shape().embedding + shape().head
    assert states >= 2 * 4 * outside > 4 * compute_state_bytes(STATES[name], outside, 4, 4096)


def test_every_optimizer_has_a_source():
    for name, kind in STATES.items():
        assert kind.source, name
        assert compute_state_bytes(kind, 1e6, 4.0, TINY.hidden) >= 0


def test_every_row_of_the_checklist_has_its_test():
    if not CHECKLIST.is_file():
        pytest.skip("the checklist of the guides is not beside this repository")
    rows = re.findall(r"^\| (M\d+) \|", CHECKLIST.read_text(encoding="utf-8"), re.MULTILINE)
    here = Path(__file__).read_text(encoding="utf-8")
    named = {int(n) for n in re.findall(r"_m(\d+)(?=_)", here) + re.findall(r"# M(\d+)", here)}
    for low, high in re.findall(r"_m(\d+)_to_m(\d+)_", here):
        named |= set(range(int(low), int(high) + 1))
    assert rows and {int(row[1:]) for row in rows} == named


def watch_executions(kept_under: Callable) -> tuple[type[Execution], set[str], set[str]]:
    """A class of executions, the names that are read of its objects, and those that ``kept_under`` does not see."""
    values = {f.name: getattr(Execution(), f.name) for f in fields(Execution)}
    known = kept_under(Execution())
    unseen = {name for name in values if kept_under(Execution(**values | {name: object()})) == known}
    asked: set[str] = set()

    class Watched(Execution):
        def __getattribute__(self, name):
            asked.add(name)
            return super().__getattribute__(name)

        def but(self, **changes):
            copy = object.__new__(Watched)
            object.__getattribute__(copy, "__dict__").update(object.__getattribute__(self, "__dict__"), **changes)
            return copy

    return Watched, asked, unseen


WEIGHTS = [{"weights_dtype": "bfloat16"}, {"autocast_dtype": "bfloat16"}, {"autocast_dtype": "float16"}]
TRAINED = [{}, {"train": "lora", "lora_rank": 8, "quant": "nf4", "lora_upcast": True}, {"train": "lora"}]


def test_a_blocks_activations_depend_on_what_they_are_kept_under():
    """The cost model computes them once for all executions with the same ``READ_FIELDS``."""
    watched, asked, unseen = watch_executions(READ_FIELDS)
    kernels = [{}, {"attention": "eager"}, {"attention": "flash"}, {"threads": 2}, {"fused_kernels": "foak"}]
    moe = replace(shape(), experts=8, moe_layers=shape().layers, experts_per_token=2)
    for one, two, three in product(WEIGHTS, TRAINED, kernels):
        for strategy, what in product(STRATEGIES, (shape(), shape(TINY), moe)):
            compute_block_activations(what, watched(strategy=strategy, **one, **two, **three))
    assert {"weights_dtype", "attention", "lora_targets"} <= asked
    assert not asked & unseen, sorted(asked & unseen)


def test_static_memory_depends_on_what_it_is_kept_under():
    """The cost model computes it once for all executions with the same ``STATIC_FIELDS``."""
    watched, asked, unseen = watch_executions(STATIC_FIELDS)
    offloads = [{}, {"offload_optimizer": "cpu"}, {"offload_optimizer": "cpu", "offload_params": "cpu"}]
    sizes = [{}, {"dp": 8, "dp_shard": 2, "nodes": 2}, {"tp": 2, "pp": 2, "cp": 2, "ep": 2, "compile": "default"}]
    moe = replace(shape(), experts=8, moe_layers=shape().layers, experts_per_token=2)
    random, optimizers = Random(1), list(STATES.values())  # each beside sixty of the others
    for one, two, three, four in product(WEIGHTS, TRAINED, offloads, sizes):
        for strategy, what in product(STRATEGIES, (shape(TINY), moe)):
            run = watched(strategy=strategy, optimizer=random.choice(optimizers), **one, **two, **three, **four)
            compute_static_memory(what, run)
    assert {"weights_dtype", "optimizer", "dp", "sums_dtype", "offload_params"} <= asked
    assert not asked & unseen, sorted(asked & unseen)
    assert {"micro_batch", "accumulation", "nodes", "dataloader_workers"} <= unseen


def test_what_memory_cannot_tell_apart_needs_the_same():
    """A search looks up the peak of one execution for all of the same ``identify_memory``."""
    tiny = shape(TINY)
    moe = replace(tiny, experts=8, moe_layers=tiny.layers, experts_per_token=2)
    lengths = {"length_shares": (0.1, 0.2, 0.4, 1.0)}
    batches = [
        {},
        {"dp": 2},
        {"dp": 8, "dp_shard": 2, "nodes": 2},
        {"dp": 8, "nodes": 2},
        {"dp": 4},
        {"dp": 4, "tp": 2},
    ]
    others = [
        *({}, {"tf32": True}, {"compile": "default"}, {"dataloader_workers": 2, "pin_memory": True}),
        *(lengths, {**lengths, "rows": "sdpa", "threads": 1}, {**lengths, "rows": "varlen", "padding_free": True}),
        *({"trained_share": 0.5}, {"loss_kernel": "chunked"}, {"checkpoint_every": 1}),
    ]
    needs: dict[tuple, set[float]] = {}
    count = 0
    for one, two, three, four in product(WEIGHTS, TRAINED, batches, others):
        for strategy, accumulation, what in product(STRATEGIES, (1, 4), (tiny, moe)):
            run = Execution(**one, **two, **three, **four, strategy=strategy, micro_batch=4, accumulation=accumulation)
            moments = compute_training_moments(what, run, compute_static_memory(what, run))
            held = (
                *(sum(moment.values()) for moment in moments.values()),
                run.devices > 1,
                keeps_checkpointed_inputs(run),
            )
            needs.setdefault((identify_memory(run), accumulation, what is moe), set()).add(held)
            count += 1
    assert all(len(held) == 1 for held in needs.values())
    assert 2 * len(needs) < count


def test_what_a_device_computes_depends_on_what_it_is_kept_under():
    """The cost model computes it once for all executions with the same ``DEVICE_FIELDS``."""
    watched, asked, unseen = watch_executions(DEVICE_FIELDS)
    kernels = [
        {"attention": name, "flash_kernels": kept, "efficient_kernels": kept}
        for name in ("eager", "flash", "sdpa")
        for kept in (True, False)
    ]
    changes = [
        *({"checkpoint_every": 2, "checkpoint_operators": True}, {"checkpoint_every": 1, "tile_tokens": 64}),
        *({"loss_kernel": "chunked", "compile": "regional"}, {"loss_kernel": "fused", "fused_kernels": "liger"}),
        *(
            {"fused_kernels": "foak", "lora_dropout": 0.1},
            {"adapter": "dora"},
            {"tp": 2, "pp": 2, "ep": 2, "threads": 2},
        ),
        *({"cp": 2, "sequence_form": form} for form in SEQUENCE_FORMS),
        *({"rows": "sdpa", "trained_share": 0.5, "expert_loop": True}, {"strategy": "fsdp_full_shard", "dp": 2}),
    ]
    moe = replace(shape(), experts=8, moe_layers=shape().layers, experts_per_token=2)
    rates = [
        compute_rates(device, cores, (), None) for device, cores in ((catalog.load("h100-sxm-80gb"), None), (CPU2, 2))
    ]
    for one, two, three, four in product(WEIGHTS, TRAINED, kernels, changes):
        for what, speed in product((shape(TINY), moe), rates):
            run = watched(**one, **two, **three, **four)
            static = compute_static_memory(what, Execution(**one, **two))
            compute_device_seconds(what, run, speed, static)
    assert {"micro_batch", "tp", "loss_kernel", "tile_tokens"} <= asked
    assert not asked & unseen, sorted(asked & unseen)
    assert {"accumulation", "dp", "optimizer", "offload_params", "nodes"} <= unseen
