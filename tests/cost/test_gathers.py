"""How often FSDP gathers and copies weights, against what it does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from leaves import FRAGMENTS, load_leaf

from generator.case.strategies import STRATEGIES
from generator.cost.comm import (
    compute_communication_seconds,
    compute_copy_seconds,
    compute_exchange,
    count_exchanged_bytes,
    count_gathers,
)
from generator.cost.execution import Execution
from generator.cost.shape import build_shape
from generator.cost.static_memory import compute_static_memory
from generator.cost.time import compute_device_seconds
from tests.cost.models import LLAMA2_7B, MIXTRAL, model

SCRIPT = Path(__file__).parent / "gathers.py"
LAYERS = 4


def test_checkpointing_gathers_no_more_than_the_backward_pass_does():
    """What it computes again finds the weights there: one gather of each block a pass, and one of the rest."""
    ended = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=True)
    plain, checkpointed = (json.loads(ended.stdout)[key] for key in ("False", "True"))
    assert plain == checkpointed
    assert plain["_allgather_base_"] == plain["split_with_sizes_copy"] == 2 * LAYERS + 1
    assert plain["_reduce_scatter_base_"] == plain["chunk_cat"] == LAYERS + 1


@pytest.mark.parametrize(
    ("strategy", "spec", "times"),
    [
        ("fsdp_full_shard", LLAMA2_7B, 2.0),
        ("fsdp_shard_grad_op", LLAMA2_7B, 1.0),
        ("zero3", LLAMA2_7B, 2.0 - 1e9 / LLAMA2_7B.params),  # of which 1e9 elements stay
        ("zero3", replace(LLAMA2_7B, params=500_000_000), 1.0),
    ],
)
def test_a_weight_is_gathered_again_where_it_was_let_go(strategy, spec, times):
    shape = build_shape(spec, "causal-lm", 0)
    for every in (0, 1):
        run = Execution(strategy=strategy, dp=8, checkpoint_every=every)
        assert count_gathers(shape, run) == pytest.approx(times)


def test_copies_grow_with_what_is_gathered_and_reduced():
    """FSDP2 copies weights once a gather and gradients once; FSDP1's layers are views of what is gathered; DDP fills buckets and
    empties them once a step."""
    cost = model(LLAMA2_7B)
    common = {"dp": 8, "weights_dtype": "bfloat16"}
    second = cost.rates.elementwise_bytes_per_s
    size = 2 * cost.shape.params

    def copy(**more):
        run = Execution(**common, **more)
        return compute_copy_seconds(cost.shape, run, cost.rates, compute_static_memory(cost.shape, run))

    assert copy(strategy="fsdp_full_shard").each == pytest.approx(2 * (2 + 1) * size / second)
    assert copy(strategy="fsdp_full_shard", fsdp_version=1).each == pytest.approx(2 * size / second)
    stages = copy(strategy="fsdp_shard_grad_op", pp=4)  # gathered and reduced once a step
    assert stages == pytest.approx((0.0, 2 * (1 + 1) * size / 4 / second))
    assert copy(strategy="ddp") == pytest.approx((0.0, 4 * size / second))
    assert "copies of shards" in {item.name for item in cost.estimate(Execution(**common, strategy="ddp")).time}
    alone = Execution(weights_dtype="bfloat16")
    assert "copies of shards" not in {item.name for item in cost.estimate(alone).time}


def test_the_loop_has_no_buckets():
    """It sums what lies there, as many gradients at once as divided_states.py says, when the last backward pass has ended."""
    cost = model(LLAMA2_7B)
    common = {"dp": 4, "pp": 2, "own_loop": True}
    loop, ddp = (Execution(**common, strategy=strategy) for strategy in ("summed_copies", "ddp"))
    ours, theirs = (compute_static_memory(cost.shape, run) for run in (loop, ddp))
    assert theirs.reduce_buckets == pytest.approx(theirs.gradients) and theirs.summed_at_once == 0
    assert ours.reduce_buckets == 0
    # the widest weight of the model, the head, may be put to what is too little for itself
    assert ours.summed_at_once == 4 * (STRATEGIES["summed_copies"].summed_elements + 32000 * 4096)
    sends = re.search(r"(?m)^SENT_ELEMENTS = ([0-9_]+)$", (FRAGMENTS / "divided_states.py").read_text())
    assert sends and float(sends[1]) == STRATEGIES["summed_copies"].summed_elements
    exchange = compute_exchange(cost.shape, loop, cost.rates, ours)
    waits = compute_communication_seconds(cost.shape, loop, cost.rates, ours, compute_seconds=1e6)
    assert waits >= exchange.once > 0 == exchange.each  # nothing hides it
    assert compute_communication_seconds(cost.shape, ddp, cost.rates, theirs, compute_seconds=1e6) < waits


def test_what_is_summed_at_once_is_as_large_as_its_last_weight_makes_it(monkeypatch):
    import torch
    import torch.distributed as dist

    monkeypatch.setitem(sys.modules, "parallel", SimpleNamespace(gloo_group=None))
    states = load_leaf("divided_states")
    monkeypatch.setattr(states, "SENT_ELEMENTS", 100)
    sent: list[int] = []
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, group=None: sent.append(tensor.numel()))
    gradients = [torch.arange(float(n)) for n in (60, 30, 500, 20, 10)]
    states.sum_over_processes([tensor.clone() for tensor in gradients])
    assert sent == [590, 30]


def test_attention_that_a_plan_leaves_whole_is_priced_whole():
    """DeepSeek-V3's plan for tensor parallelism has the feed-forward alone: each part attends for all heads. Megatron's has not."""
    cost = model(LLAMA2_7B)
    whole = replace(cost.shape, whole_attention=True)
    loop, other = (Execution(strategy="none", tp=4, own_loop=own) for own in (True, False))
    divided, ours, theirs = (
        compute_static_memory(shape, run) for shape, run in ((cost.shape, loop), (whole, loop), (whole, other))
    )
    attention = 4 * 4096**2 * LLAMA2_7B.layers
    assert theirs.weights == divided.weights == pytest.approx(4 * LLAMA2_7B.params / 4)
    assert ours.weights == pytest.approx(4 * (attention + (LLAMA2_7B.params - attention) / 4))
    slow, fast = (
        compute_device_seconds(shape, loop, cost.rates, static)
        for shape, static in ((whole, ours), (cost.shape, divided))
    )
    assert slow["attention"] == pytest.approx(4 * fast["attention"])
    assert slow["matrix products"] > 1.5 * fast["matrix products"]


@pytest.mark.parametrize("train", ["full", "lora"])
@pytest.mark.parametrize(("pp", "tp"), [(1, 1), (2, 1), (2, 2)])
def test_experts_that_stay_take_nothing_of_adapters(train, pp, tp):
    """Gradients of adapters were less than nothing once the experts' weights were taken from them: complex seconds."""
    shape = build_shape(MIXTRAL, "causal-lm", 0)
    runs = [Execution(strategy="fsdp_full_shard", dp=8, pp=pp, tp=tp, ep=ep, train=train) for ep in (1, 8)]
    (all_weights, all_gradients), (weights, gradients) = (
        count_exchanged_bytes(shape, run, compute_static_memory(shape, run)) for run in runs
    )
    assert 0 < weights < all_weights / 5
    assert 0 < gradients < all_gradients / 5 if train == "full" else gradients == all_gradients
