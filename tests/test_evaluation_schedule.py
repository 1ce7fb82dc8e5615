"""Evaluation takes its share of a run's time and no more."""

from __future__ import annotations

import random

import pytest
from making import H100, SMALL, case, cost, cpu_device, llama

from generator.case.held_out import MOST_ROWS
from generator.decide.evaluation import TIME_SHARE, compute_forward_seconds, schedule_evaluation
from generator.decide.plan import decide

RUN = {"rows": 10_000, "share": None, "batch_rows": 8, "forward_seconds": 0.3, "step_seconds": 4.0, "steps": 312}


def test_a_share_of_the_rows_at_most_500():
    run = RUN | {"save_steps": 500, "forward_seconds": 0.01}
    assert schedule_evaluation(**run).rows == 200
    assert schedule_evaluation(**run | {"rows": 1_000_000}).rows == MOST_ROWS
    assert schedule_evaluation(**run | {"rows": None, "steps": None}).rows == MOST_ROWS
    assert schedule_evaluation(**run | {"rows": 20}).rows == 2


def test_what_was_asked_for_is_evaluated_less_often():
    cheap = schedule_evaluation(**RUN, save_steps=500)
    given = schedule_evaluation(**RUN | {"share": 0.1}, save_steps=500)
    assert given.rows == 1000 and given.interval > cheap.interval
    assert cheap.rows < 200 and cheap.count == 9, "the default's rows are cut, its curve is not"


@pytest.mark.parametrize("seed", range(300))
def test_the_time_is_within_its_share(seed):
    draw = random.Random(seed)
    run = {
        "rows": draw.choice([None, draw.randrange(1, 10**6)]),
        "share": draw.choice([None, None, 0.01, 0.2]),
        "batch_rows": draw.choice([1, 4, 64]),
        "step_seconds": 10 ** draw.uniform(-2, 2),
        "steps": draw.choice([None, draw.randrange(1, 20_000)]),
        "save_steps": draw.randrange(1, 2000),
        "save_seconds": draw.choice([0.0, 10.0, 300.0]),
    }
    run["forward_seconds"] = run["step_seconds"] / draw.choice([2, 8, 64])
    schedule = schedule_evaluation(**run)
    steps = run["steps"] or schedule.interval
    evaluations = 1 + -(-steps // schedule.interval)
    taken = evaluations * -(-schedule.rows // run["batch_rows"]) * run["forward_seconds"]
    assert schedule.rows >= 1 and schedule.interval >= 1
    assert schedule.share == pytest.approx(taken / (steps * run["step_seconds"]))
    if schedule.share > TIME_SHARE + 1e-9:  # no less can be evaluated: before and after
        assert evaluations == 2 and (run["share"] or schedule.rows <= run["batch_rows"])


def test_a_save_that_takes_long_is_not_made_for_an_evaluation():
    often = schedule_evaluation(**RUN, save_steps=312)
    seldom = schedule_evaluation(**RUN, save_steps=312, save_seconds=8.0)
    assert often.interval == 39 and seldom.interval == 100


@pytest.mark.parametrize("of", [case(H100), case(cpu_device(), llama(**SMALL), global_batch=8)], ids=["h100", "cpu"])
def test_a_forward_pass_is_half_of_a_micro_batch_at_most(of):
    """Against the model's own arithmetic: a third of the matrix products of full training are forward."""
    best = decide(of, cost(of)).best
    seconds = compute_forward_seconds(best.estimate, best.execution)
    products = next(item.value for item in best.estimate.time if item.name == "matrix products")
    assert (
        products / best.execution.accumulation / 4 < seconds < best.estimate.step_seconds / best.execution.accumulation
    )
