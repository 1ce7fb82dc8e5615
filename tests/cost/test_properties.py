"""What must hold for every configuration."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from generator.case.strategies import SEQUENCE_FORMS, STRATEGIES
from generator.cost.engines import ENGINES
from generator.cost.estimate import BASES
from generator.cost.execution import BYTES, Execution
from generator.cost.memory import compute_training_moments
from generator.cost.weights import FORMATS
from generator.estimate.optimizers import list_optimizer_states
from tests.cost.models import BERT, CPU2, LLAMA2_7B, MISTRAL_7B, MIXTRAL, TINY, model

GPU = model(MISTRAL_7B, host_memory_bytes=256 << 30)
MHA = model(LLAMA2_7B)
EXPERTS = model(MIXTRAL, host_memory_bytes=256 << 30)
HOST = model(TINY, CPU2, device_memory_bytes=24 << 30, host_memory_bytes=24 << 30, cpu_budget=2)
CLASSIFIER = model(BERT, task="text-classification", num_labels=3)
MODELS = (GPU, MHA, HOST, CLASSIFIER)

precision = st.sampled_from(
    [("float32", None), ("float32", "bfloat16"), ("float32", "float16"), ("bfloat16", None), ("bfloat16", "bfloat16")]
)
trained = st.sampled_from([("full", 0, "none"), ("lora", 16, "none"), ("lora", 16, "nf4"), ("lora", 8, "int8")])


either = st.sampled_from(["train", "infer"])


@st.composite
def executions(draw, mode=either):
    stored, autocast = draw(precision)
    train, rank, quant = draw(trained)
    chosen = draw(mode)
    return Execution(
        mode=chosen,
        micro_batch=draw(st.integers(1, 64)),
        accumulation=draw(st.integers(1, 16)) if chosen == "train" else 1,
        seq_len=draw(st.integers(1, 32768)),
        new_tokens=draw(st.integers(1, 512)) if chosen == "infer" else 0,
        weights_dtype=stored,
        autocast_dtype=autocast if chosen == "train" else None,
        train=train,
        lora_rank=rank,
        quant=quant,
        optimizer=draw(st.sampled_from([*list_optimizer_states().values()])),
        optimizer_fused=draw(st.booleans()),
        checkpoint_every=draw(st.integers(0, 4)),
        loss_kernel=draw(st.sampled_from(["plain", "chunked", "fused"])),
        attention=draw(st.sampled_from(["eager", "sdpa", "flash"])),
        fused_kernels=draw(st.sampled_from(["none", "liger"])),
        compile=draw(st.sampled_from([None, "default"])),
        length_shares=draw(st.sampled_from([(), (0.1, 0.2, 0.9), (1.0, 1.0)])),
        padding_left=draw(st.floats(0, 1)),
        row_order=draw(st.sampled_from(["", "random", "dealt", "sorted"])),
        sorted_batches=draw(st.sampled_from([1, 50])),
        rows=draw(st.sampled_from(["batch", "varlen"])),
        strategy=(parallel := draw(st.sampled_from(["none", "ddp", "fsdp_full_shard", "zero1", "zero2", "zero3"]))),
        dp=1 if parallel == "none" else draw(st.sampled_from([2, 4, 8])),
    )


sizes = st.sampled_from([1, 1, 2, 4, 8])


@st.composite
def parallel_executions(draw, mode=either):
    """Those above, with whatever else an execution can say: most of it was found wrong in a combination that nobody thought of."""
    run = draw(executions(mode))
    strategy = draw(st.sampled_from(sorted(STRATEGIES)))
    cp, tp, dp = draw(sizes), draw(sizes), draw(sizes)
    more = {
        "seq_len": run.seq_len * cp,
        "quant": draw(st.sampled_from(["none", "nf4", "int8", "float8", *FORMATS])),
        "train": draw(st.sampled_from(["full", "lora"])),
        "lora_rank": 8,
        "adapter": draw(st.sampled_from(["lora", "dora"])),
        "lora_dropout": draw(st.sampled_from([0.0, 0.1])),
        "lora_casts": draw(st.booleans()),
        "checkpoint_offload": draw(st.booleans()),
        "checkpoint_operators": draw(st.booleans()),
        "tile_tokens": draw(st.sampled_from([0, 512])),
        "expert_loop": draw(st.booleans()),
        "returns_cache": draw(st.booleans()),
        "fused_kernels": draw(st.sampled_from(["none", "liger", "foak", "pretraining"])),
        "packed_keeps": draw(st.sampled_from(["", "inputs", "weights"])),
        "flat_gradients": draw(st.booleans()),
        "fsdp_version": draw(st.sampled_from([1, 2])),
        "offload_optimizer": draw(st.sampled_from(["none", "cpu"])),
        "offload_params": draw(st.sampled_from(["none", "cpu"])),
        "engine": draw(st.sampled_from(sorted(ENGINES))) if run.mode == "infer" else "",
        "cache": draw(st.sampled_from(["none", "dynamic", "static", "quantized-4bit", "offloaded", "tuple"])),
        "cache_dtype": draw(st.sampled_from([None, *sorted(BYTES)])),
        "continuous": run.mode == "infer" and draw(st.booleans()),
        "keeps_all_logits": draw(st.booleans()),
        "sequence_parallel": draw(st.booleans()),
        "sequence_form": draw(st.sampled_from(sorted(SEQUENCE_FORMS))) if cp > 1 else None,
        "strategy": strategy,
        "dp": dp,
        "dp_shard": draw(st.sampled_from([n for n in (1, 2, 4, 8) if n <= dp])) if strategy == "hsdp" else 0,
        "tp": tp,
        "pp": draw(sizes),
        "cp": cp,
        "ep": draw(sizes),
    }
    return replace(run, **more)


any_model = st.sampled_from(MODELS)
many = settings(max_examples=400, deadline=None)


@many
@given(any_model, executions(), st.integers(1, 64), st.integers(0, 4096))
def test_more_tokens_never_need_less_memory(cost, run, more_batch, more_tokens):
    base = cost.estimate(run)
    longer = cost.estimate(replace(run, seq_len=run.seq_len + more_tokens))
    larger = cost.estimate(replace(run, micro_batch=run.micro_batch + more_batch))
    assert longer.peak_memory_gib >= base.peak_memory_gib - 1e-9
    assert larger.peak_memory_gib >= base.peak_memory_gib - 1e-9
    assert longer.allocator_peak_gib >= base.allocator_peak_gib - 1e-9
    assert larger.step_seconds >= base.step_seconds - 1e-9


@many
@given(any_model, executions())
def test_parts_are_finite_positive_and_sourced(cost, run):
    estimate = cost.estimate(run)
    assert estimate.memory and estimate.time
    for part in (*estimate.memory, *estimate.host_memory, *estimate.time):
        assert part.value >= 0 and part.value == part.value and part.value != float("inf")
        assert part.basis in BASES and part.source
    assert estimate.tokens_per_second > 0
    assert estimate.peak_memory_gib >= estimate.allocator_peak_gib


@many
@given(st.sampled_from((GPU, EXPERTS, HOST)), parallel_executions())
def test_no_item_of_memory_is_negative(cost, run):
    """An item that takes away more than others bring makes a plan fit that does not."""
    estimate = cost.estimate(run)
    negative = {p.name: p.value for p in (*estimate.memory, *estimate.host_memory) if p.value < 0}
    if run.mode == "train":  # also at the moments that are not the fullest
        moments = compute_training_moments(cost.shape, run, cost._find_static(run))
        negative |= {
            f"{at}: {name}": value for at, items in moments.items() for name, value in items.items() if value < 0
        }
    assert not negative


def test_what_went_to_the_host_is_taken_off_once():
    """A pipeline's stage keeps its share of the blocks, and offloads no more of their inputs than those."""
    run = Execution(seq_len=2048, checkpoint_every=1, checkpoint_offload=True, strategy="zero1", dp=2, pp=4)
    moments = compute_training_moments(GPU.shape, run, GPU._find_static(run))
    assert moments["loss"]["kept activations"] == 0.0


@many
@given(any_model, executions())
def test_same_input_same_estimate(cost, run):
    assert cost.estimate(run) == cost.estimate(run)


@given(st.sampled_from([128, 512, 2048]), st.sampled_from([1, 4, 16]), st.sampled_from([1, 4]))
def test_a_faster_product_makes_no_longer_step(seq_len, micro_batch, accumulation):
    """Also where weights come from the host and gradients go there: what waits for the one does not hold up the other."""
    moved = Execution(strategy="zero3", offload_params="cpu", offload_optimizer="cpu", weights_dtype="float32", dp=2)
    run = replace(moved, seq_len=seq_len, micro_batch=micro_batch, accumulation=accumulation)
    slow, fast = (GPU.estimate(replace(run, tf32=tf32)).step_seconds for tf32 in (False, True))
    assert fast <= slow * 1.0001


@many
@given(any_model, executions(st.just("train")))
def test_checkpointing_never_needs_more_memory_and_never_saves_time(cost, run):
    every = replace(run, checkpoint_every=1, compile=None)
    none = replace(run, checkpoint_every=0, compile=None)
    with_it, without = cost.estimate(every), cost.estimate(none)
    # 1 %, and what a CPU's allocator keeps more of recomputed blocks
    kept = [{item.name: item.value for item in e.memory}.get("fragmentation", 0.0) for e in (with_it, without)]
    more = max(0.0, kept[0] - kept[1]) if cost.rates.on_cpu else 0.0
    assert with_it.peak_memory_gib - more <= without.peak_memory_gib * 1.01 + 1e-6
    assert with_it.step_seconds >= without.step_seconds * 0.999


@many
@given(executions(st.just("train")), st.sampled_from([2, 4, 8]))
def test_sharding_over_more_devices_never_needs_more_weights(run, devices):
    one = replace(run, strategy="fsdp_full_shard", dp=devices)
    two = replace(run, strategy="fsdp_full_shard", dp=2 * devices)
    assert GPU.estimate(two).peak_memory_gib <= GPU.estimate(one).peak_memory_gib + 1e-9


@pytest.mark.parametrize("quant", ["none", "int8", "nf4"])
def test_fewer_bits_never_weigh_more(quant):
    order = ["none", "int8", "nf4"]
    run = Execution(mode="infer", weights_dtype="bfloat16", new_tokens=16, seq_len=64)
    weights = [next(p.value for p in GPU.estimate(replace(run, quant=q)).memory if p.name == "weights") for q in order]
    assert weights == sorted(weights, reverse=True)
    assert weights[order.index(quant)] > 0


def test_on_cpu_everything_is_host_memory():
    estimate = HOST.estimate(Execution(threads=2))
    assert estimate.limit_gib == pytest.approx(24)
    assert "interpreter" in {p.name for p in estimate.memory}
    assert estimate.host_memory == ()
