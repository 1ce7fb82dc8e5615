"""Time: arithmetic against PyTorch's own counter, ratios against measured ones, and physical limits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from generator.case.optimizer_states import NO_UPDATE
from generator.cost import constants as c
from generator.cost.comm import (
    Group,
    compute_all_reduce_seconds,
    compute_all_to_all_seconds,
    compute_expert_parallel_seconds,
    compute_ring_seconds,
    compute_sequence_parallel_seconds,
)
from generator.cost.constants import GEMM_CEILING, GEMM_REALISED, STEP_OVERHEAD_SECONDS
from generator.cost.device import compute_rates
from generator.cost.execution import Execution
from generator.cost.memory import compute_training_moments
from generator.cost.shape import Linear, build_shape
from generator.cost.static_memory import compute_static_memory
from generator.cost.time import (
    compute_issue_seconds,
    compute_linear_seconds,
    compute_product_seconds,
    compute_start_seconds,
    count_forward_operators,
    count_score_traffic,
    count_unpackings,
    describe_micro_batch,
    fuses_softmax,
)
from generator.estimate.optimizers import list_optimizer_states
from generator.estimate.table import read_row
from hwdetect import catalog
from tests.cost.flops import step_flops
from tests.cost.models import A100, CPU2, LLAMA2_7B, MISTRAL_7B, MIXTRAL, model, spec
from tests.cost.test_cases import ROW

ROOT = Path(__file__).resolve().parents[2]
SMALL_CPU = spec("llama", 8, 384, 6, 6, 1024, 8192, 17_000_000)
"""17M-parameter Llama, batch 4 x 256, of the project's CPU measurements"""


def seconds(cost, **more) -> float:
    return cost.estimate(Execution(**more)).step_seconds


@pytest.mark.parametrize("spec_", [MISTRAL_7B, LLAMA2_7B])
@pytest.mark.parametrize("micro_batch", [1, 8, 64])
def test_no_prediction_exceeds_the_largest_product_rate_ever_reached(spec_, micro_batch):
    shape = build_shape(spec_, "causal-lm", 0)
    run = Execution(
        micro_batch=micro_batch, seq_len=4096, weights_dtype="bfloat16", attention="flash", fused_kernels="liger"
    )
    work = step_flops(shape, micro_batch * 4096, 4096 / 2)
    assert work / model(spec_).estimate(run).step_seconds < GEMM_CEILING["ampere"] * 312e12


def test_faster_devices_are_faster():
    run = Execution(seq_len=4096, weights_dtype="bfloat16", micro_batch=8)
    twice = replace(
        A100, memory_bytes_per_s=2 * A100.memory_bytes_per_s, peak_flops=tuple((k, 2 * v) for k, v in A100.peak_flops)
    )
    assert model(MISTRAL_7B, twice).estimate(run).step_seconds < model(MISTRAL_7B).estimate(run).step_seconds


def test_checkpointing_costs_about_a_third_of_a_forward_and_backward():
    common = {"seq_len": 4096, "weights_dtype": "bfloat16", "micro_batch": 4, "accumulation": 8}
    cost = model(MISTRAL_7B)
    ratio = seconds(cost, checkpoint_every=1, **common) / seconds(cost, **common)
    assert 1.2 < ratio < 1.4


def test_lora_skips_the_weight_gradients():
    common = {"seq_len": 4096, "weights_dtype": "bfloat16", "micro_batch": 4}
    cost = model(MISTRAL_7B)
    assert seconds(cost, train="lora", lora_rank=16, **common) < seconds(cost, **common)


def test_accumulation_costs_what_its_micro_batches_cost():
    cost = model(MISTRAL_7B)
    common = {"seq_len": 2048, "weights_dtype": "bfloat16"}
    one = cost.estimate(Execution(micro_batch=4, **common))
    eight = cost.estimate(Execution(micro_batch=4, accumulation=8, **common))
    assert eight.step_seconds < 8 * one.step_seconds
    assert eight.tokens_per_step == 8 * one.tokens_per_step


def test_a_slow_link_makes_ddp_of_a_large_model_slower():
    run = Execution(seq_len=512, weights_dtype="bfloat16", micro_batch=1, strategy="ddp", dp=4)
    slow = replace(A100, link_bytes_per_s=5e9)
    assert model(MISTRAL_7B, slow).estimate(run).tokens_per_second < model(MISTRAL_7B).estimate(run).tokens_per_second


CPU = {"micro_batch": 4, "seq_len": 256, "threads": 2}
RATIOS = [
    ("eager attention", {"attention": "eager"}, 0.92, 0.10),
    ("unfused AdamW", {"optimizer_fused": False}, 1 / 1.05, 0.06),
    ("compiled", {"compile": "default"}, 1.22, 0.12),
    ("bf16 autocast without bf16 instructions", {"autocast_dtype": "bfloat16"}, 0.32, 0.15),
]


@pytest.mark.parametrize(("name", "change", "measured", "tolerance"), RATIOS, ids=[r[0] for r in RATIOS])
def test_cpu_training_ratios_measured_on_two_cores(name, change, measured, tolerance):
    cost = model(SMALL_CPU, CPU2, device_memory_bytes=24 << 30, host_memory_bytes=24 << 30, cpu_budget=2)
    assert seconds(cost, **CPU) / seconds(cost, **CPU, **change) == pytest.approx(measured, abs=tolerance)


CPU2_BF16 = replace(CPU2, peak_flops=(("fp32", 320e9), ("bf16", 1280e9)))


def test_short_rows_in_bf16_cost_a_cpu_calls_for_each_head():
    """Padded rows; those that stand one after the other are attended to in float32."""
    cost, run = model(SMALL_CPU, CPU2_BF16), {"autocast_dtype": "bfloat16", "micro_batch": 4}

    def count_extra(**more) -> float:
        return seconds(cost, **run, **more) - seconds(cost, **run, rows="sdpa", **more)

    assert count_extra(seq_len=64) > 0
    assert count_extra(seq_len=64) == pytest.approx(count_extra(seq_len=1024))
    assert seconds(cost, micro_batch=4) == seconds(cost, micro_batch=4, rows="sdpa")


def test_eager_products_of_single_heads_are_no_faster_in_bf16_on_a_cpu():
    cost = model(SMALL_CPU, CPU2_BF16)
    common = {"attention": "eager", "micro_batch": 4, "seq_len": 1024}
    full, half = (
        next(item.value for item in cost.estimate(Execution(**common, **more)).time if item.name == "attention")
        for more in ({}, {"autocast_dtype": "bfloat16"})
    )
    assert 0.5 * full < half < full


def test_cpu_decoding_measured_on_two_cores():
    """88M Llama, batch 1, fp32: 30.7 tokens/s, with a static cache and compilation 43.6."""
    llama = spec("llama", 12, 768, 12, 12, 2048, 8000, 88_000_000)
    cost = model(llama, CPU2, device_memory_bytes=24 << 30, host_memory_bytes=24 << 30, cpu_budget=2)
    plain = Execution(mode="infer", seq_len=32, new_tokens=64, threads=2)
    compiled = replace(plain, cache="static", compile="reduce-overhead")
    # of a processor whose threads read half as fast again as those that the constants are of
    assert cost.estimate(plain).tokens_per_second == pytest.approx(30.7, rel=0.3)
    assert cost.estimate(compiled).tokens_per_second == pytest.approx(43.6, rel=0.38)
    gain = cost.estimate(compiled).tokens_per_second / cost.estimate(plain).tokens_per_second
    assert gain == pytest.approx(43.6 / 30.7, rel=0.15)


def test_one_thread_is_slower_than_two():
    cost = model(SMALL_CPU, CPU2, device_memory_bytes=24 << 30, host_memory_bytes=24 << 30, cpu_budget=2)
    ratio = seconds(cost, **{**CPU, "threads": 1}) / seconds(cost, **CPU)
    assert 1.3 < ratio < 2.0


GENERATE = [(1, 41.9, 14.356), (8, 312.0, 19.997), (64, 725.0, 65.111)]


@pytest.mark.parametrize(("batch", "tokens_per_s", "peak_gb"), GENERATE)
def test_generation_of_llama_2_7b(batch, tokens_per_s, peak_gb):
    """optimum-benchmark 2023, A100-80GB, float16, 256 prompt and 512 new tokens."""
    run = Execution(
        mode="infer",
        weights_dtype="float16",
        micro_batch=batch,
        seq_len=256,
        new_tokens=512,
        cache="tuple",
        attention="sdpa",
    )
    estimate = model(LLAMA2_7B).estimate(replace(run, keeps_all_logits=True))
    assert estimate.tokens_per_second == pytest.approx(tokens_per_s, rel=0.15)
    assert estimate.allocator_peak_gib * 2**30 / 1e9 == pytest.approx(peak_gb, rel=0.05)


def items(run: Execution, what=LLAMA2_7B) -> dict[str, float]:
    return {item.name: item.value for item in model(what).estimate(run).time}


@pytest.mark.parametrize(("tp", "power"), [(1, c.OVERLAP_POWER), (2, c.TENSOR_OVERLAP_POWER)])
def test_a_device_waits_for_its_host_and_tensor_parts_for_the_slowest_of_several(tp, power):
    """Rows so short that the host is in the way: the step is the p-norm of what host and device take."""
    run = Execution(seq_len=64, weights_dtype="bfloat16", tp=tp)
    cost, step = model(LLAMA2_7B), items(run)
    issue = compute_issue_seconds(cost.shape, compute_static_memory(cost.shape, run), run, cost.rates, 0.0)
    device = sum(step.get(name, 0.0) for name in DEVICE_ITEMS)
    assert step["launch"] > 0.1 * device
    assert step["launch"] + device == pytest.approx((issue**power + device**power) ** (1 / power))


DEVICE_ITEMS = ("matrix products", "attention", "elementwise", "loss", "tensor parallel")


@pytest.mark.parametrize(("again", "compiled", "passes"), [(0.0, False, 3.0), (1.0, False, 4.0), (0.0, True, None)])
def test_operators_take_a_start_each_however_little_they_move(again, compiled, passes):
    """Forward one, backward two, and one more that checkpointing repeats; a product's own start is in its seconds."""
    cost, run = model(LLAMA2_7B), Execution(weights_dtype="bfloat16", compile="default" if compiled else None)
    beside = count_forward_operators(cost.shape, run) - 7
    passes = passes or 3.0 * c.COMPILED_LAUNCH_SHARE
    seconds = compute_start_seconds(cost.shape, run, cost.rates, again)
    assert seconds == pytest.approx(beside * passes * c.PRODUCT_SECONDS)
    assert compute_start_seconds(cost.shape, run, model(LLAMA2_7B, CPU2).rates, again) == 0


def test_tensor_parts_divide_what_lies_between_products():
    """All of it with sequence parallelism; norms and residuals of all tokens are repeated without (arXiv 2205.05198)."""
    common = {"seq_len": 4096, "weights_dtype": "bfloat16", "micro_batch": 8, "attention": "flash"}
    one, four = (items(Execution(tp=tp, **common))["elementwise"] for tp in (1, 4))
    repeated = items(Execution(tp=4, sequence_parallel=False, **common))["elementwise"]
    starts = (
        32 * (11 + 2 * 6 + 14 + 2) * 3 * 3e-6
    )  # a Llama block's operators beside its seven products, in three passes
    one, four, repeated = one - starts, four - starts, repeated - starts
    assert four == pytest.approx(one / 4)
    # two norms of 7 float32 and 4 bfloat16 passes and two residual sums of 3, of 4096 values; rotary passes of 8192 values,
    # and 5 of the feed-forward's 11008
    hidden = 4096 * (2 * (7 * 4 + 4 * 2) + 2 * 3 * 2)
    others = (10 * 8192 + 5 * 11008) * 2
    assert repeated / four == pytest.approx(4 * (hidden + others / 4) / (hidden + others))


@pytest.mark.parametrize(
    ("words", "tp", "loop", "factor"),
    [
        (50257, 1, False, 2.4),
        (50264, 1, False, 1.0),
        (50256, 4, False, 1.35),
        (50264, 4, False, 1.9),
        # the parts of vTrain's rows: 25128, 12564 and 6282 words
        (50257, 2, False, 1.0),
        (50257, 4, False, 1.35),
        (50257, 8, False, 1.9),
        (50257, 2, True, 2.4),
    ],
)
def test_logits_whose_rows_begin_at_no_multiple_of_16_bytes_take_longer(words, tp, loop, factor):
    """The output layer's products alone: an even vocabulary beside one that no multiple of 8 divides."""

    def products(vocab: int) -> float:
        what = replace(LLAMA2_7B, vocab=vocab, layers=2)
        run = Execution(seq_len=4096, weights_dtype="bfloat16", tp=tp, own_loop=loop)
        return items(run, what)["matrix products"]

    even = 64000  # 16 bytes of 16 bits in 1 and 4 parts
    layer = (products(2 * even) - products(even)) / even  # of a word
    blocks = products(even) - layer * even
    assert (products(words) - blocks) / (layer * words) == pytest.approx(factor, rel=0.02)


def test_a_pipeline_fills_and_drains_without_the_output_layer():
    """All of a bubble's seconds are of stages that have none: more words cost every micro-batch more and the bubble nothing."""
    run = Execution(seq_len=4096, weights_dtype="bfloat16", pp=4, accumulation=8, strategy="none")
    few, many = (items(run, replace(LLAMA2_7B, vocab=n)) for n in (32000, 256000))
    assert many["matrix products"] > 1.2 * few["matrix products"]
    assert many["pipeline bubble"] == pytest.approx(few["pipeline bubble"], rel=0.01)


@pytest.mark.parametrize("strategy", ["zero1", "fsdp_full_shard", "none"])
def test_an_update_is_of_the_weights_that_a_device_has(strategy):
    """Tensor parts and stages update their own: an eighth of the bytes, in an eighth of the time."""
    common = {"seq_len": 512, "weights_dtype": "bfloat16", "strategy": strategy, "dp": 2 if strategy != "none" else 1}
    device, parts = (items(Execution(**common, tp=n, pp=m))["optimizer"] for n, m in ((1, 1), (2, 4)))
    overhead = STEP_OVERHEAD_SECONDS
    assert (device - overhead) / (parts - overhead) == pytest.approx(8)


@pytest.mark.parametrize("offload", ["cpu", "nvme"])
def test_an_offloaded_update_is_of_the_weights_that_a_device_has(offload):
    common = {"seq_len": 512, "weights_dtype": "bfloat16", "strategy": "zero3", "dp": 2, "offload_optimizer": offload}
    two = items(Execution(**common, nodes=1))
    eight = items(Execution(**common, tp=2, pp=2, nodes=4))  # as many devices a node
    names = ("optimizer", "gradients to host")
    for name in names:
        overhead = STEP_OVERHEAD_SECONDS if name == "optimizer" else 0.0
        assert eight.get(name, 0.0) - overhead < (two[name] - overhead) / 3.5


def test_a_product_takes_the_root_of_the_squares_of_arithmetic_and_traffic():
    """3 and 4 seconds by themselves: 5, not 7, and not 4."""
    assert compute_product_seconds(10, 10, 10, 2000 / 3, 2 * 300 / 4, 2.0) == pytest.approx(5)


@pytest.mark.parametrize(
    ("hidden", "width", "active", "experts", "tokens", "milliseconds"),
    # vLLM 0.24 on an H100, bfloat16, balanced (aiconfigurator-core 0.12.0)
    [
        (2048, 768, 8, 128, 2048, 0.600),
        (2048, 768, 8, 128, 8192, 1.489),
        (2048, 768, 8, 128, 16384, 2.912),
        (4096, 14336, 2, 8, 4096, 5.625),
        (4096, 14336, 2, 8, 16384, 22.561),
        (6144, 2048, 8, 256, 16384, 21.168),
    ],
)
def test_routed_experts_take_as_long_as_published(hidden, width, active, experts, tokens, milliseconds):
    rates = compute_rates(catalog.load("h100-sxm-80gb"), None, (), None)
    rate = rates.product("bfloat16", False)
    sizes = {"gate": (hidden, width), "up": (hidden, width), "down": (width, hidden)}
    linears = [Linear(role, *size, experts, active / experts) for role, size in sizes.items()]
    seconds = sum(compute_linear_seconds(x, tokens, rate, rates, 2.0) for x in linears)
    assert seconds == pytest.approx(milliseconds / 1e3, rel=0.2)


def test_eight_bits_are_of_products_alone():
    """Attention and what lies between are of 16 bits, and each input is read twice and written once more to be cast."""
    common = {"seq_len": 4096, "weights_dtype": "bfloat16", "micro_batch": 4, "attention": "flash"}
    sixteen, eight = (
        {
            i.name: i.value
            for i in model(LLAMA2_7B, catalog.load("h100-sxm-80gb"))
            .estimate(Execution(autocast_dtype=dtype, **common))
            .time
        }
        for dtype in ("bfloat16", "float8")
    )
    assert 1 / 1.7 < eight["matrix products"] / sixteen["matrix products"] < 1 / 1.4
    assert eight["attention"] == sixteen["attention"]
    assert eight["elementwise"] > sixteen["elementwise"]


@pytest.mark.parametrize(
    ("device", "kernel", "length", "share"),
    # benchmarks/results/published_operators.json: measured shares of the 16-bit peak, causal, forward
    [
        ("a100-sxm-80gb", "flash2", 512, 0.2961),
        ("a100-sxm-80gb", "flash2", 2048, 0.477),
        ("a100-sxm-80gb", "flash2", 16384, 0.5675),
        ("rtx-pro-6000-blackwell-server", "flash2", 4096, 0.5385),
        ("h100-sxm-80gb", "flash3", 512, 0.2162),
        ("h100-sxm-80gb", "flash3", 2048, 0.4544),
        ("h200-sxm-141gb", "flash3", 16384, 0.601),
        ("b200-sxm-180gb", "flash3", 16384, 0.5452),
    ],
)
def test_attention_is_as_fast_as_published(device, kernel, length, share):
    board = catalog.load(device)
    forward, backward = compute_rates(board, None, (), None).flash(length, kernel)
    assert forward / dict(board.peak_flops)["bf16"] == pytest.approx(share, rel=0.08)
    assert backward < forward


def test_cudnns_attention_is_as_fast_as_measured():
    """On an H200, which PyTorch takes there by itself; FlashAttention-2 would be half as fast."""
    day = json.loads((ROOT / "benchmarks" / "results" / "gpu_day_h200.json").read_text(encoding="utf-8"))
    rates = compute_rates(catalog.load("h200-sxm-141gb"), None, (), None)
    rows = [row for row in day["rows"] if row["kind"] == "attention"]
    for row in rows:
        forward, backward = rates.flash(row["run"]["length"], "cudnn")
        predicted = forward if row["run"]["direction"] == "forward" else backward
        assert predicted == pytest.approx(row["measured"]["flops_per_s"], rel=0.12), row["run"]
        assert rates.flash(row["run"]["length"])[0] < 0.65 * forward
    assert len(rows) == 28


def test_a_ring_calls_attention_for_parts_of_the_sequence():
    """An eighth of 8,192 keys at a time: 1024 / (1024 + 480) of the kernel's rate, not 8192 / (8192 + 480)."""
    common = {"seq_len": 8192, "weights_dtype": "bfloat16", "strategy": "zero1", "cp": 8}
    heads, ring = (items(Execution(sequence_form=form, **common))["attention"] for form in ("ulysses", "ring"))
    assert ring / heads == pytest.approx((8192 / 8672) / (1024 / 1504))


@pytest.mark.parametrize(
    ("ranks", "megabytes", "gather", "all_reduce"),
    [(2, 4, 43, 56), (2, 32, 154, 224), (2, 256, 939, 1430), (8, 4, 48, 77), (8, 32, 218, 367), (8, 256, 1217, 2183)],
)
def test_messages_of_any_size_take_as_long_as_published(ranks, megabytes, gather, all_reduce):
    """Microseconds between devices of an A100 node (aiconfigurator-core 0.12.0, nccl 2.27.3, in 16 bits)."""
    rates = compute_rates(catalog.load("a100-sxm-80gb"), None, (), None)
    group = Group(Execution(strategy="ddp", dp=8), ranks)
    size = megabytes * 2.0**20
    assert compute_ring_seconds(size, group, rates) * 1e6 == pytest.approx(gather, rel=0.25)
    assert compute_all_reduce_seconds(size, group, rates) * 1e6 == pytest.approx(all_reduce, rel=0.25)


def test_a_gather_over_many_nodes_waits_for_every_other_device():
    """NCCL has trees for all-reduces alone. 1,024 nodes of two of the group, and one of eight."""
    rates = compute_rates(catalog.load("h100-sxm-80gb"), None, (), None, 8)
    run = Execution(strategy="fsdp_full_shard", nodes=1024, dp=2048, tp=4)
    wide, within = Group(run, 2048, 4), Group(run, 8)
    wait = 1024 * c.HOP_SECONDS + 1023 * c.NETWORK_HOP_SECONDS
    tree = 11 * c.COLLECTIVE_LATENCY_SECONDS
    assert compute_ring_seconds(0.0, wide, rates) == pytest.approx(wait)
    assert compute_all_reduce_seconds(0.0, wide, rates) == pytest.approx(2 * tree)
    assert compute_all_to_all_seconds(0.0, wide, rates) == pytest.approx(tree)
    assert compute_ring_seconds(0.0, within, rates) == pytest.approx(3 * c.COLLECTIVE_LATENCY_SECONDS)


def test_nodes_of_a_rack_that_share_switches_are_as_one_node():
    """GB200: trays of four boards, 72 on the switches of a rack. Beyond it a ring has the networks of all its nodes."""
    rack = compute_rates(catalog.load("gb200"), None, (), 400e9, 4)
    trays = replace(rack, rack=0)
    run = Execution(strategy="ddp", nodes=36, dp=144)
    inside, beyond = Group(run, 72), Group(run, 144)
    assert inside.bytes_per_s(rack) == rack.link(4) > inside.bytes_per_s(trays) == 400e9
    assert inside.ring_seconds(rack) < inside.ring_seconds(trays)
    assert beyond.bytes_per_s(rack) == min(rack.link(4), 400e9 * 72 / 4)
    assert beyond.bytes_per_s(trays) == 400e9
    # eight expert groups of nine places apart leave no rack, sixteen of them do
    assert Group(run, 8, 9).is_linked(rack) and not Group(run, 16, 9).is_linked(rack)


def test_what_each_sends_to_each_other_waits_for_no_ring():
    """Heads and tokens of experts go straight to where they belong, also over two nodes of eight; keys and values pass by all."""
    rates, shape = compute_rates(catalog.load("h100-sxm-80gb"), None, (), None, 8), build_shape(MIXTRAL, "causal-lm", 0)
    run = Execution(strategy="zero1", nodes=2, cp=16, sequence_form="ulysses", weights_dtype="bfloat16")
    tree, ring = Group(run, 16).tree_seconds, Group(run, 16).ring_seconds(rates)
    assert ring > tree
    heads, keys = (
        compute_sequence_parallel_seconds(shape, run.but(sequence_form=form), rates, 0.0, 0.0)
        for form in ("ulysses", "ring")
    )
    assert heads == pytest.approx(3 * 4 * tree) and keys == pytest.approx(3 * 15 * ring)
    experts = Execution(strategy="zero1", nodes=2, dp=16, ep=16, weights_dtype="bfloat16")
    assert compute_expert_parallel_seconds(shape, experts, rates, 0.0, 0.0) == pytest.approx(2 * 2 * tree)


@pytest.mark.parametrize(
    ("device", "milliseconds"),
    # nccl 2.27 all-gather of 256 MiB values of 16 bits over 8 boards of a node (aiconfigurator-core 0.12.0)
    [("a100-sxm-80gb", 2.288), ("h100-sxm-80gb", 1.400)],
)
def test_a_gather_takes_as_long_as_published(device, milliseconds):
    rates = compute_rates(catalog.load(device), None, (), None, 8)
    run = Execution(strategy="fsdp_full_shard", dp=8)
    seconds = compute_ring_seconds(2 * 2**28, Group(run, 8), rates)
    assert seconds == pytest.approx(milliseconds / 1e3, rel=0.08)


@pytest.mark.parametrize(
    ("device", "share"),
    [
        ("a100-pcie-80gb", 0.811),  # stas00/ml-engineering
        ("l40s", 0.615),  # aiconfigurator-core 0.12.0, vLLM, products of 4096 and more each way
        ("rtx-4090", 0.85),  # power enough for its halved rate
        ("rtx-3090", 0.92),  # more than enough
        ("rtx-pro-6000-blackwell-server", 0.776),  # aiconfigurator-core 0.12.0: 0.773 to 0.785
    ],
)
def test_a_board_with_less_power_is_slower(device, share):
    board = catalog.load(device)
    reached = compute_rates(board, None, (), None).product("bfloat16", False) / GEMM_REALISED
    assert reached / dict(board.peak_flops)["bf16"] == pytest.approx(share, rel=0.05)


def test_an_unknown_cache_is_no_missing_one():
    known = catalog.load("b200-sxm-180gb")
    board = replace(known, l2_bytes=None)
    sizes = [compute_rates(x, None, (), None).l2_bytes / x.memory_bytes_per_s for x in (board, known)]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.2)


def test_a_stated_power_limit_is_the_boards():
    """500 of 700 W: the cube root of it."""
    rates = [
        compute_rates(read_row({**ROW, "device": "h100-sxm-96gb", **stated}).device, None, (), None)
        for stated in ({}, {"device_text": "H100-SXM-96GB-HBM2e(500W)"})
    ]
    full, limited = (x.product("bfloat16", False) for x in rates)
    assert limited / full == pytest.approx((500 / 700) ** (1 / 3), rel=1e-3)


def test_selective_checkpointing_keeps_attention_and_every_second_product():
    """torchtitan's policy "op" on Llama-2-7B: q, v, gate and down are kept with attention's output and statistics; k, o and up are
    multiplied again."""
    common = {"seq_len": 4096, "weights_dtype": "bfloat16", "attention": "flash"}
    runs = [
        Execution(checkpoint_every=every, checkpoint_operators=chosen, **common)
        for every, chosen in ((0, False), (1, True), (1, False))
    ]
    seconds = [items(run) for run in runs]
    h, f = 4096, 11008
    again = [x["matrix products"] - seconds[0]["matrix products"] for x in seconds]
    assert again[1] / again[2] == pytest.approx((2 * h * h + h * f) / (4 * h * h + 3 * h * f), rel=0.02)
    assert seconds[1]["attention"] == seconds[0]["attention"] < seconds[2]["attention"]
    assert seconds[1]["elementwise"] == seconds[2]["elementwise"]
    shape = build_shape(LLAMA2_7B, "causal-lm", 0)
    moments = [compute_training_moments(shape, run, compute_static_memory(shape, run)) for run in runs]
    held = [moment["last block"]["kept activations"] for moment in moments]
    kept = 2 * (3 * h + f + h) + 4 * 32
    assert held[1] - held[2] == pytest.approx(32 * 4096 * kept)
    assert held[2] < held[1] < held[0]


@pytest.mark.parametrize(
    ("change", "milliseconds"),
    [({}, 7.6), ({"optimizer_fused": False}, 16.1), ({"fused_kernels": "pretraining"}, 0.0)],
)
def test_a_trainers_step_takes_host_time(change, milliseconds):
    """Beside the bytes of the update; Megatron's own loop updates by a few kernels."""
    run = Execution(weights_dtype="bfloat16", train="lora", lora_rank=1, lora_targets=("k_proj",), **change)
    assert items(run)["optimizer"] * 1e3 == pytest.approx(milliseconds, abs=0.05)


def test_forward_and_backward_alone_have_no_update():
    common = {"seq_len": 512, "weights_dtype": "bfloat16"}
    assert "optimizer" not in items(Execution(optimizer=NO_UPDATE, **common))
    assert items(Execution(optimizer=list_optimizer_states()["sgd"], **common))["optimizer"] > STEP_OVERHEAD_SECONDS


def test_small_tensors_come_out_of_the_cache():
    """A 4090 copies 16 MiB at 3.6 TB/s and 64 MiB at 0.82, an A100 at 2.2 and 1.2."""
    ada, ampere = (compute_rates(catalog.load(name), None, (), None) for name in ("l40s", "a100-sxm-80gb"))
    assert ada.speed_up(1e6) == pytest.approx(4.4) and ampere.speed_up(1e6) == pytest.approx(1.8)
    assert 1.0 < ada.speed_up(1e8) < 1.5 and ampere.speed_up(1e9) < 1.01
    assert compute_rates(CPU2, 2, (), None).speed_up(1e3) == 1.0


def test_autocast_issues_a_cast_of_each_input_and_weight():
    """14 more operators a Llama block, as counted under torch.autocast (transformers 5.23)."""
    pure = Execution(weights_dtype="float32")
    shape = build_shape(LLAMA2_7B, "causal-lm", 0)
    counts = [count_forward_operators(shape, run) for run in (pure, pure.but(autocast_dtype="bfloat16"))]
    assert counts[1] - counts[0] == 14
    cast_by_fsdp = pure.but(autocast_dtype="bfloat16", strategy="fsdp_full_shard", dp=2)
    assert count_forward_operators(shape, cast_by_fsdp) == counts[0]


def test_megatrons_softmax_takes_a_multiple_of_4_matrices():
    """16 heads over 8 devices: one sequence leaves 2 to each, and the fused kernel refuses them (vTrain's 32 runs so were 1.33 to
    1.44 times slower than estimated, and no others)."""
    shape = build_shape(replace(LLAMA2_7B, heads=16), "causal-lm", 0)
    run = Execution(weights_dtype="float16", attention="eager", fused_kernels="pretraining", tp=8)
    assert [fuses_softmax(shape, run.but(micro_batch=rows)) for rows in (1, 2, 3, 4)] == [False, True, False, True]
    assert [fuses_softmax(shape, run.but(tp=parts)) for parts in (1, 2, 4)] == [True] * 3
    one, two = (count_forward_operators(shape, run.but(micro_batch=rows)) for rows in (1, 2))
    assert one > two
    assert count_score_traffic(shape, run) > 2 * count_score_traffic(shape, run.but(micro_batch=2))
    assert count_forward_operators(shape, run.but(attention="flash_attention_2")) == two


def generate(**changes):
    run = Execution(mode="infer", weights_dtype="float16", seq_len=64, new_tokens=512, **changes)
    return {item.name: item.value / 512 for item in model(LLAMA2_7B).estimate(run).time}


@pytest.mark.parametrize(
    ("engine", "milliseconds"),
    [("vllm-0.6", 11.0), ("tensorrt-llm", 9.8), ("gpt-fast", 9.5), ("deepspeed-mii", 12.3), ("ctranslate2", 17.9)],
)
def test_engines_decode_as_published(engine, milliseconds):
    """Llama-2-7B in 16 bits, one A100, batch 1 (more/infer_small_sources, more/infer_gptfast); Transformers takes 21.6."""
    seconds = sum(generate(engine=engine, cache="static", compile="reduce-overhead").values())
    assert seconds * 1e3 == pytest.approx(milliseconds, rel=0.1)
    assert seconds < 0.8 * sum(generate().values())


def test_one_row_of_packed_weights_is_multiplied_as_it_is():
    """gemv_4bit reads half a byte a weight; of more rows bitsandbytes unpacks them first. LLM.int8() never does."""
    one, two = (generate(quant="nf4", micro_batch=n)["decode"] for n in (1, 2))
    assert one < 0.4 * generate()["decode"] and two > 5 * one
    assert generate(quant="int8", micro_batch=2)["decode"] < generate(micro_batch=2)["decode"]


def test_grouped_heads_are_read_as_they_are():
    """Four query heads of Mistral share keys and values. Transformers wrote them out four times before 4.48, and eager attention
    still does; sdpa of 5.23 hands grouped heads on (enable_gqa), or packs the queries of one new token."""
    run = Execution(mode="infer", weights_dtype="float16", seq_len=4096, new_tokens=64, micro_batch=16, cache="static")
    decode = {
        name: {item.name: item.value for item in model(MISTRAL_7B).estimate(run.but(**change)).time}["decode"]
        for name, change in {
            "engine": {"engine": "vllm"},
            "now": {},
            "before": {"repeats_heads": True},
            "eager": {"attention": "eager"},
        }.items()
    }
    assert decode["engine"] < decode["now"] < 0.5 * decode["before"]
    assert decode["eager"] == pytest.approx(decode["before"])


def test_the_output_layer_and_the_loss_see_the_trained_tokens_alone():
    cost = model(SMALL_CPU, CPU2, device_memory_bytes=24 << 30, host_memory_bytes=24 << 30, cpu_budget=2)
    run = Execution(micro_batch=8, seq_len=256, loss_kernel="tiled", threads=2)
    every, quarter = (cost.estimate(run.but(trained_share=share)) for share in (1.0, 0.25))
    items = {item.name: item.value for item in every.time}
    less = {item.name: item.value for item in quarter.time}
    assert less["loss"] == pytest.approx(items["loss"] / 4) and less["matrix products"] < items["matrix products"]
    assert {name for name in items if items[name] != less[name]} == {"loss", "matrix products"}
    assert quarter.peak_memory_gib == every.peak_memory_gib  # a batch may have nothing else


def test_a_product_that_was_measured_is_nearer_to_a_step_s_than_a_data_sheet():
    told = replace(CPU2, basis="published", peak_flops=(("fp32", 1e11),))
    sheet, measured = (
        compute_rates(device, 2, (), None).product("float32", False)
        for device in (told, replace(told, basis="measured"))
    )
    assert sheet == 1e11 * c.GEMM_CEILING_CPU < measured == 1e11 * c.GEMM_MEASURED_CPU


def test_weights_of_tiled_layers_are_unpacked_for_each_tile():
    """Attention's four products of 4096 x 4096 once in each of two passes and of the one that is made again, the three of the
    feed-forward of 11,008 for each of 4 tiles, and once more there."""
    shape = build_shape(LLAMA2_7B, "causal-lm", 0)
    run = Execution(micro_batch=1, seq_len=4096, quant="nf4", train="lora", checkpoint_every=1)
    attention, feed_forward = 4 * 4096 * 4096, 3 * 4096 * 11008
    assert count_unpackings(shape, run, describe_micro_batch(shape, run)) == 3
    tiled = run.but(tile_tokens=1024)
    times = count_unpackings(shape, tiled, describe_micro_batch(shape, tiled))
    assert times == pytest.approx((3 * attention + 4 * 4 * feed_forward) / (attention + feed_forward))


@pytest.mark.parametrize("device", [A100, CPU2], ids=["GPU", "CPU"])
def test_recomputed_blocks_make_their_scores_once_more(device):
    """Eager attention's backward pass takes two forward passes, and what is recomputed a third."""
    cost = model(LLAMA2_7B, device, device_memory_bytes=1 << 40)
    run = Execution(micro_batch=1, seq_len=1024, attention="eager")
    kept, again = (
        next(item.value for item in cost.estimate(run.but(checkpoint_every=every)).time if item.name == "attention")
        for every in (0, 1)
    )
    assert again == pytest.approx(kept * 4 / 3)
