"""When a run is evaluated, and on how many rows: so that it takes no more than a twentieth of the run's own time."""

from __future__ import annotations

import math
from dataclasses import dataclass

from generator.case.held_out import count_held_rows, leave_global_batch
from generator.cost.estimate import Estimate
from generator.cost.execution import Execution

TIME_SHARE = 0.05
"""Of a run's steps, that evaluation may take (ours)."""
SAVE_SHARE = 0.02
"""Of a run's steps, that saves may take which are made only because there is an evaluation (ours)."""
POINTS = 8
"""Evaluations after the first that a short run has (ours): enough to see a curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """``rows`` in one evaluation, every ``interval`` optimizer steps, and before the first and after the last step.

    ``seconds`` is one evaluation's, ``share`` that of all of them in the time of all steps; ``count`` is ``None``, and
    ``share`` that of a run of one interval, where the number of steps is not known.
    """

    rows: int
    interval: int
    seconds: float
    count: int | None
    share: float


def compute_forward_seconds(estimate: Estimate, run: Execution) -> float:
    """At most what one micro-batch takes without its backward pass: a backward pass takes no less than its forward."""
    once = sum(item.value for item in estimate.time if item.name == "optimizer")
    return (estimate.step_seconds - once) / run.accumulation / 2


def schedule_evaluation(
    *,
    rows: int | None,
    share: float | None,
    batch_rows: int,
    forward_seconds: float,
    step_seconds: float,
    steps: int | None,
    save_steps: int,
    save_seconds: float = 0.0,
    global_batch: int = 0,
) -> Schedule | None:
    """The schedule of a run of ``steps`` (``None``: not known) that saves every ``save_steps``.

    ``rows``: of the data, ``None`` where not counted. ``share``: what to hold out of them, ``None`` for the default, whose rows
    are cut where they take too long; those that were asked for stay, and are evaluated less often. ``batch_rows`` go through
    one forward pass of ``forward_seconds`` on all devices.
    ``global_batch`` rows stay to be trained on, where they are not those of a file; ``None``: no others are there.
    """
    wanted = leave_global_batch(count_held_rows(rows, share), rows, global_batch)
    if not wanted:
        return None
    interval = choose_interval(steps, step_seconds, save_steps, save_seconds)
    budget = TIME_SHARE * (steps or interval) * step_seconds
    if share is None:
        affordable = math.floor(budget / count_evaluations(steps, interval) / forward_seconds) * batch_rows
        wanted = min(wanted, max(affordable, min(wanted, batch_rows)))
    seconds = math.ceil(wanted / batch_rows) * forward_seconds
    if count_evaluations(steps, interval) * seconds > budget:
        interval = stretch_interval(steps, seconds, budget, step_seconds)
    taken = count_evaluations(steps, interval) * seconds / ((steps or interval) * step_seconds)
    return Schedule(
        rows=wanted,
        interval=interval,
        seconds=seconds,
        count=None if steps is None else count_evaluations(steps, interval),
        share=taken,
    )


def choose_interval(steps: int | None, step_seconds: float, save_steps: int, save_seconds: float) -> int:
    """Where the run saves, and in a short one often enough to see a curve: the model of every evaluation can be kept."""
    if steps is None:
        return save_steps
    seldom = math.ceil(save_seconds / (SAVE_SHARE * step_seconds))
    return max(1, min(save_steps, steps, max(math.ceil(steps / POINTS), seldom)))


def count_evaluations(steps: int | None, interval: int) -> int:
    """The one before the first step, one an interval, and the one after the last step; at least two."""
    return 2 if steps is None else 1 + math.ceil(steps / interval)


def stretch_interval(steps: int | None, seconds: float, budget: float, step_seconds: float) -> int:
    """The shortest interval at which evaluations keep within their share; where even two do not, there are two."""
    if steps is None:
        return math.ceil(2 * seconds / (TIME_SHARE * step_seconds))
    return math.ceil(steps / max(1, math.floor(budget / seconds) - 1))
