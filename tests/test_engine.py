"""The decision engine: what must hold for every case, and the reasons it gives."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from making import H100, SMALL, T4, case, cost, cpu_device, gpu, llama, with_memory

from generator.decide.candidates import HEADROOM_SHARE, cost_members
from generator.decide.ladder import build_ladder
from generator.decide.plan import decide
from generator.decide.search import KEPT, RISKS, search_space
from generator.decide.serving import plan_case
from generator.decide.space import LAST, open_space
from generator.errors import NothingFits, UsageError

DEVICES = [H100, T4, gpu("8.9", 24, 165, 1.0e12, "RTX 4090"), cpu_device(16, 64), cpu_device(4, 16, bf16=True)]
MODELS = [llama(), llama(**SMALL), llama(hidden=2048, layers=16, heads=16, kv_heads=4, ffn=5632, vocab=50304)]

cases = st.builds(
    lambda device, model, task, train, seq_len, batch, features, devices, nodes: case(
        device,
        model,
        task=task,
        train=train,
        seq_len=seq_len,
        global_batch=batch,
        features=features,
        devices=1 if device.kind == "cpu" else devices,
        nodes=1 if device.kind == "cpu" else nodes,
    ),
    st.sampled_from(DEVICES),
    st.sampled_from(MODELS),
    st.sampled_from(["causal-lm", "sft", "text-classification"]),
    st.sampled_from(["full", "lora", "qlora"]),
    st.sampled_from([128, 512, 2048, 8192]),
    st.sampled_from([1, 4, 6, 32]),
    st.sampled_from([("avx2",), ("avx2", "avx512f", "avx512_bf16")]),
    st.sampled_from([1, 2, 3, 8]),
    st.sampled_from([1, 1, 2]),
)


NARROW = (
    "checkpointing",
    "optimizer",
    "precision",
    "loss",
    "compile",
    "data-loading",
    "packing",
    "attention",
    "offload",
)


def narrowed(of, seed):
    """The space of a case with all but a few axes narrowed to few members: small enough for thousands of draws."""
    random = Random(seed)
    room = open_space(of, cost(of))
    few = {name: sample(random, room.open[name], random.choice((0, 1, 1, 2))) for name in NARROW if name in room.open}
    few["parallelism"] = sample(random, room.open["parallelism"], 3)
    return room.narrowed(few)


def sample(random, members, most):
    """Some of the members, the plain one always among them where it is open."""
    drawn = set(random.sample(members, min(most, len(members))))
    return tuple(t for t in members if t.baseline or t in drawn) or members[:1]


def first(room):
    return next(iter(search_space(room, kept=1)), None)


SEEDS = st.integers(0, 2**32)


@settings(max_examples=2000, deadline=None)
@given(cases, st.floats(2, 100), SEEDS)
def test_a_plan_that_is_said_to_fit_is_within_its_limit_with_headroom(of, gib, seed):
    of = with_memory(of, gib)
    found = first(narrowed(of, seed))
    if found:
        assert found.estimate.peak_memory_gib <= found.estimate.limit_gib * (1 - HEADROOM_SHARE)
        run = found.execution
        assert run.micro_batch * run.accumulation * run.dp == of.workload.global_batch
        assert run.devices == found.layout.devices <= of.devices
        assert run.seq_len == of.workload.seq_len


@settings(max_examples=1000, deadline=None)
@given(cases, st.floats(2, 60), st.sampled_from([1.1, 1.5, 3.0]), SEEDS)
def test_more_memory_never_makes_a_plan_worse(of, gib, factor, seed):
    less = first(narrowed(with_memory(of, gib), seed))
    more = first(narrowed(with_memory(of, gib * factor), seed))
    if less:
        assert more is not None
        assert (more.standing, more.seconds) <= (less.standing, less.seconds * (1 + 1e-9))


@settings(max_examples=1000, deadline=None)
@given(cases, st.floats(2, 100), SEEDS)
def test_same_input_same_plan(of, gib, seed):
    of = with_memory(of, gib)
    a, b = first(narrowed(of, seed)), first(narrowed(replace(of), seed))
    assert (a and a.key) == (b and b.key)


@settings(max_examples=2000, deadline=None)
@given(cases, st.sampled_from(["seq_len", "micro_batch"]), st.randoms(use_true_random=False))
def test_longer_or_larger_never_needs_less(of, what, random):
    room = open_space(of, cost(of))
    members = some_members(room, random)
    if members is None:
        return
    run = random.choice(cost_members(room, members)).execution
    grown = replace(run, **{what: getattr(run, what) * 2})
    assert room.cost.estimate(grown).peak_memory_gib >= room.cost.estimate(run).peak_memory_gib - 1e-9


def some_members(room, random):
    """One member an axis, drawn at random; None where that draw conflicts everywhere."""
    for _ in range(20):
        members = tuple(random.choice(room.open[axis.name]) for axis in room.axes if room.open[axis.name])
        if len(members) == len(room.axes) and not any(room.conflict(a, b) for a, b in combinations(members, 2)):
            return members
    return None


@settings(max_examples=15, deadline=None)
@given(cases)
def test_every_refusal_names_the_shortfall_and_its_ladder_fits(of):
    small = with_memory(of, 1.0)
    try:
        decide(small, cost(small))
    except NothingFits as refused:
        assert "GiB" in refused.message
        for rung in build_ladder(small):
            assert rung.best.fits


def everything(room, risk, resort):
    """Plain enumeration: every set of techniques of at most this risk without a conflict, every layout, every batch split."""
    for members in product(*(room.members(axis, risk, resort) for axis in room.axes)):
        if not any(room.conflict(a, b) for a, b in combinations(members, 2)):
            yield from cost_members(room, members)


def brute_force(room):
    """The best of each set of techniques, best first; what can be emitted before what is only planned."""
    for emitted in (True, False):
        for risk, resort in product(RISKS, range(LAST + 1)):
            found = {}
            for c in everything(room, risk, resort):
                if not c.fits or (emitted and not all(t.emitted for t in c.members)):
                    continue
                if c.members not in found or c.key < found[c.members].key:
                    found[c.members] = c
            if found:
                return sorted(found.values(), key=lambda c: c.key)
    return []


@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases, st.floats(2, 100), SEEDS)
def test_the_pruned_search_equals_plain_enumeration(of, gib, seed):
    """A thousand small cases: random devices, memory, models, workloads, and all but a few axes narrowed to few members."""
    room = narrowed(with_memory(of, gib), seed)
    expected = brute_force(room)[:KEPT]
    assert [c.key for c in search_space(room)] == [c.key for c in expected]


def test_nothing_that_touches_convergence_while_something_else_fits():
    plan = decide(case(train="lora"), cost(case(train="lora")))
    assert plan.best.risk == 0


def test_what_touches_convergence_is_taken_when_nothing_else_fits_and_said():
    of = case(H100, train="full", task="causal-lm", host_gib=64)  # too little to offload to
    plan = decide(of, cost(of))
    assert plan.best.risk > 0
    assert any(d.quality_note for d in plan.decisions)


def test_reasons_are_counterfactuals():
    of = case(train="lora", task="causal-lm")
    decisions = {d.axis: d for d in decide(of, cost(of)).decisions}
    assert "without it (fp32)" in decisions["precision"].why
    assert "eager" in decisions["attention"].why
    assert all(r.why for d in decisions.values() for r in d.rejected)


def test_every_member_is_chosen_or_rejected_with_a_reason():
    of = case(T4, llama(**SMALL))
    for decision in decide(of, cost(of)).decisions:
        names = [decision.chosen, *(r.name for r in decision.rejected)]
        assert len(names) == len(set(names))


def test_a_pin_is_kept_and_said():
    of = case(train="lora", pins=(("checkpointing", "full"), ("optimizer", "lion-8bit")))
    plan = decide(of, cost(of))
    assert plan.best.choice["checkpointing"] == "full" and plan.best.choice["optimizer"] == "lion-8bit"
    assert {d.axis: d.why for d in plan.decisions}["optimizer"] == "you pinned it"


@pytest.mark.parametrize(
    ("pin", "words"),
    [
        (("no-axis", "x"), "no axis"),
        (("precision", "fp9"), "no such technique"),
        (("precision", "bf16"), "compute capability 8.0"),
        (("attention", "flash-attention"), "8.0"),
    ],
)
def test_an_impossible_pin_is_an_error_that_says_why(pin, words):
    of = case(T4, llama(**SMALL), pins=(pin,))
    with pytest.raises(UsageError, match=words):
        decide(of, cost(of))


def test_the_global_batch_is_the_users():
    for batch in (1, 7, 30, 31):
        of = case(T4, llama(**SMALL), global_batch=batch)
        found = decide(of, cost(of)).best.execution
        assert found.micro_batch * found.accumulation == batch


def test_a_training_plan_says_how_it_is_served():
    plan = plan_case(case(train="qlora"))
    assert plan.serving.best.choice["quantization"] == "bnb-nf4", "an adapter is served on the base it was trained on"


def test_ladder_of_a_model_that_cannot_fit_reaches_a_larger_device():
    of = case(T4, llama(), train="full", task="causal-lm", host_gib=32)
    with pytest.raises(NothingFits, match="short") as refused:
        plan_case(of)
    options = [rung.option.split()[0] for rung in refused.value.ladder]
    assert "--hardware" in options and "--train" in options


def test_a_refusal_in_json_has_its_ladder(capsys):
    import json

    from generator.cli import report_error

    of = case(T4, llama(), train="full", task="causal-lm", host_gib=32)
    with pytest.raises(NothingFits) as refused:
        plan_case(of)
    report_error(refused.value, as_json=True)
    told = json.loads(capsys.readouterr().out)["error"]
    assert told["exit_code"] == 3 and "short" in told["message"]
    assert {"option", "peak_memory_gib", "step_seconds"} <= set(told["ladder"][0])
