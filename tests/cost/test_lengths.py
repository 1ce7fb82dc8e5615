"""Texts of different lengths: what devices compute and wait for, against the samplers that deal the texts out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from leaves import load_beside

from generator.cost import CostModel
from generator.cost.execution import Execution
from generator.cost.lengths import compute_slowest_share, count_computed_tokens, count_least_tokens
from tests.cost.models import LLAMA2_7B, model

numpy = pytest.importorskip("numpy")
pytest.importorskip("transformers")
from transformers.trainer_pt_utils import get_length_grouped_indices  # noqa: E402

EMITTED = load_beside("balanced_processes", "epoch_order")
ROWS = 40_000
DRAWN = numpy.random.default_rng(0)
LENGTHS = {
    "chats": numpy.clip(DRAWN.lognormal(5.5, 0.7, ROWS), 8, 2048).astype(int),
    "long tail": numpy.clip(DRAWN.lognormal(5.0, 1.1, ROWS), 8, 2048).astype(int),
    "even": DRAWN.integers(50, 1000, ROWS),
}
WAYS = {
    "padded": {"padding_left": 1.0, "row_order": "random"},
    "one after the other": {"padding_left": 0.0, "row_order": "random", "rows": "varlen"},
    "dealt": {"padding_left": 0.0, "row_order": "dealt", "rows": "varlen"},
    "sorted": {"padding_left": 0.0, "row_order": "sorted"},
}


def deal_out(lengths, way: str, run: Execution) -> float:
    """Tokens of the device with the most, over those of as many of the longest text."""
    batch = run.micro_batch * run.accumulation * run.dp
    shape = run.micro_batch, run.accumulation, run.dp
    order = {
        "sorted": lambda: get_length_grouped_indices(lengths.tolist(), batch),
        "dealt": lambda: list(EMITTED.BalancedSampler(lengths.tolist(), *shape, seed=0)),
    }.get(way, lambda: DRAWN.permutation(ROWS))()
    steps = min(ROWS // batch, 2000)
    # as Accelerate's BatchSamplerShard: batches in turn
    texts = lengths[numpy.asarray(order)[: steps * batch]].reshape(steps, run.accumulation, run.dp, run.micro_batch)
    each = texts.sum(-1) if run.rows == "varlen" else run.micro_batch * texts.max(-1)
    meets = run.strategy != "ddp"
    slowest = each.max(-1).sum(-1) if meets else each.sum(1).max(-1)
    return slowest.mean() / (lengths.max() * run.micro_batch * run.accumulation)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp_full_shard"])
def test_the_slowest_device_computes_as_many_tokens_as_the_samplers_deal_it(lengths, way, strategy):
    texts = LENGTHS[lengths]
    shares = tuple(numpy.quantile(texts / texts.max(), numpy.linspace(0, 1, 101)).tolist())
    for dp, micro, accumulation in ((1, 4, 4), (2, 1, 8), (3, 4, 1), (8, 4, 4), (8, 16, 1), (32, 4, 1), (64, 1, 8)):
        run = Execution(
            micro_batch=micro,
            accumulation=accumulation,
            dp=dp,
            strategy=strategy,
            length_shares=shares,
            sorted_batches=max(1, min(ROWS // (micro * accumulation * dp) // 4, 50)),
            **WAYS[way],
        )
        assert compute_slowest_share(run) == pytest.approx(deal_out(texts, way, run), rel=0.14), (
            dp,
            micro,
            accumulation,
        )


def test_devices_that_have_as_many_tokens_wait_for_nobody():
    full = Execution(micro_batch=4, dp=8, strategy="ddp", length_shares=(0.5, 0.5, 0.5))
    for way in ({}, *WAYS.values()):
        assert compute_slowest_share(full.but(**way)) == pytest.approx(0.5)


def test_devices_that_meet_once_a_step_wait_less_than_those_that_meet_for_each_micro_batch():
    run = Execution(micro_batch=4, accumulation=8, dp=8, length_shares=(0.1, 0.2, 0.3, 1.0), row_order="random")
    once, each = (compute_slowest_share(run.but(strategy=name)) for name in ("ddp", "fsdp_full_shard"))
    assert once < each
    assert compute_slowest_share(run.but(strategy="zero2")) == each


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.floats(0.01, 1), min_size=3, max_size=12).map(lambda drawn: tuple(sorted(drawn))),
    st.sampled_from(["ddp", "zero1", "zero3", "fsdp_full_shard"]),
    st.sampled_from([1, 2, 8, 64]),
    st.sampled_from([1, 2, 4, 8, 16]),
    st.sampled_from([1, 7, 50]),
    st.sampled_from([{}, *WAYS.values()]),
)
def test_no_split_of_a_batch_is_faster_than_its_bound(shares, strategy, dp, micro, batches, way):
    cost: CostModel = model(LLAMA2_7B)
    run = Execution(
        seq_len=512,
        dp=dp,
        strategy=strategy if dp > 1 else "none",
        length_shares=shares,
        sorted_batches=batches,
        attention="sdpa",
        **way,
    )
    splits = [(m, 16 // m) for m in (1, 2, 4, 8, 16)]
    bound = cost.least_parts(run, splits[0], splits[-1])
    timed = run.but_split((micro, 16 // micro))
    assert cost.floor_seconds(run.but_split(splits[0])) <= cost.step_seconds(timed) * (1 + 1e-9)
    assert bound <= cost.step_seconds(timed) * (1 + 1e-9)
    assert count_least_tokens(timed) <= count_computed_tokens(timed)
