"""What one choice costs: techniques, a layout of the devices, a batch split."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from generator.case.case import Case
from generator.case.layout import Layout
from generator.cost.costmodel import CostModel
from generator.cost.estimate import Estimate
from generator.cost.execution import Execution, Split
from generator.cost.lengths import count_computed_tokens
from generator.decide.space import ONE_DEVICE, Space, find_usable_gib
from generator.techniques.base import Technique
from generator.techniques.looped import divides_tokens

PLAINNESS = 0.01
"""A technique that gains less than 1 % is not worth its line of code (ours); keeps the ranking a total order."""
LARGER_IS_FASTER = (
    "twice the micro-batch, same global batch: tokens/s 1.14, 1.03, 1.01, 1.01 times (from 2, 4, 8, 16; medians of 200 pairs of "
    "published runs, fms-acceleration, A100-80GB)"
)
"""Of rows of equal length. Where a micro-batch is padded to its longest text, a larger one is more tokens: those are as fast at least."""
FULL_SHARE = 0.9
"""Of a device's memory. A step that gains less than 1 % by filling it further (PLAINNESS) is not worth what goes wrong there (ours):
of nine in ten published runs the memory is within 3 % of its estimate, and a machine may have less than it says."""

NARROW_GAIN = 0.1
"""What a step must gain by a memory that one in ten published runs of its kind would not have fitted in: that one is begun again (ours)."""


@dataclass(frozen=True)
class Candidate:
    """One configuration and its cost. ``members`` holds one technique per axis, in the order of the axes."""

    members: tuple[Technique, ...]
    layout: Layout
    execution: Execution
    cost: CostModel = field(compare=False, repr=False)
    risk: int
    resort: int
    seconds: float
    """what it is ranked by: a step, its share of the one-time costs, and 1 % per technique that is not the plain one"""
    peak_gib: float
    fits: bool
    """within the limits, with headroom"""
    planned: bool
    """priced, and no project can be made of it"""

    @cached_property
    def estimate(self) -> Estimate:
        """Item by item: a search looks at thousands of candidates, and asks it of few."""
        return self.cost.estimate(self.execution)

    @property
    def choice(self) -> dict[str, str]:
        return {t.axis: t.name for t in self.members}

    @cached_property
    def standing(self) -> tuple[bool, int, int]:
        """Whether it is only planned, its risk to convergence, and its farthest resort: speed never outweighs them."""
        return self.planned, self.risk, self.resort

    @cached_property
    def key(self) -> tuple:
        """Its class, then time, fewer passes, fewer devices, less memory; names, so that equals have one order."""
        return (
            *self.standing,
            self.seconds,
            -self.execution.micro_batch,
            self.layout.devices,
            self.peak_gib,
            tuple(t.id for t in self.members),
        )


def build_execution(space: Space, members: tuple[Technique, ...], layout: Layout = ONE_DEVICE) -> Execution:
    """The script that these techniques add up to. Two that set one field is a bug and raises ``ValueError``."""
    fields: dict[str, Any] = {}
    for technique in members:
        for name, value in space.effects(technique, layout).items():
            if fields.get(name, value) != value:
                raise ValueError(
                    f"{technique.id} sets {name}={value!r}, which another technique set to {fields[name]!r}"
                )
            fields[name] = value
    return Execution(**describe_script(space.case), **describe_layout(layout), **fields)


def describe_script(case: Case) -> dict[str, Any]:
    """What the workload says of the script."""
    workload = case.workload
    trained = {"own_loop": True, "sequence_parallel": divides_tokens(case)}
    more = {"new_tokens": workload.new_tokens} if workload.mode == "infer" else trained
    asked = {"mode": workload.mode, "seq_len": workload.seq_len}
    return asked | more


def describe_layout(layout: Layout) -> dict[str, Any]:
    """What a layout says of it."""
    return {
        "strategy": layout.strategy,
        "nodes": layout.nodes,
        "dp": layout.dp,
        "dp_shard": layout.shard if layout.replicate > 1 and layout.shard > 1 else 0,
        "tp": layout.tp,
        "pp": layout.pp,
        "cp": layout.cp,
        "ep": layout.ep,
        "sequence_form": layout.sequence_form,
    }


def split_batch(case: Case, dp: int = 1) -> tuple[Split, ...]:
    """(micro-batch, accumulation) that with ``dp`` copies give the global batch, smallest first. Inference serves its
    concurrency, the fullest of the copies the most."""
    if case.workload.mode == "infer":
        return ((math.ceil(case.workload.concurrency / dp), 1),)
    return divide_evenly(case.workload.global_batch // dp)


@cache
def divide_evenly(total: int) -> tuple[Split, ...]:
    """Every product of two whole numbers that is ``total``, the smallest first factor first."""
    small = [d for d in range(1, int(total**0.5) + 1) if total % d == 0]
    divisors = sorted({*small, *(total // d for d in small)})
    return tuple((d, total // d) for d in divisors)


def cost_members(space: Space, members: tuple[Technique, ...], layout: Layout | None = None) -> list[Candidate]:
    """Every layout and batch split of one combination, each layout up to the first split that does not fit (memory grows from
    there), and the whole batch at once where that fits (it sums no gradients between passes)."""
    if layout is None:
        return [c for one in space.layouts_of(members) for c in cost_members(space, members, one)]
    known = space.memo.costed
    if (members, layout) not in known:
        known[members, layout] = _cost_splits(space, members, layout)
    return known[members, layout]


def _cost_splits(space: Space, members: tuple[Technique, ...], layout: Layout) -> list[Candidate]:
    base, cost = build_execution(space, members, layout), space.cost
    rated = sum(map(space.rate_risk, members)), max(map(space.rate_resort, members))
    costed: list[Candidate] = []
    planned = any(t.explain_unemitted(space.case) for t in members)
    rank = SplitRank(space, members, layout)
    splits = split_batch(space.case, layout.dp)
    for micro, accumulation in splits:
        is_last = (micro, accumulation) == splits[-1]
        if accumulation > 1 and not all(t.accumulates for t in members):
            continue
        if costed and not costed[-1].fits and not is_last:
            continue
        run = base.but_split((micro, accumulation))
        peak_gib = cost.peak_gib(run)
        fits = peak_gib <= find_usable_gib(cost, run) and cost.fits_host(run)
        if costed and not costed[-1].fits and not fits:
            continue
        seconds = rank.next(run, peak_gib) if fits else rank_seconds(space.case, members, cost.step_seconds(run))
        costed.append(Candidate(members, layout, run, cost, *rated, seconds, peak_gib, fits, planned))
    return costed


def find_best_split(
    space: Space, members: tuple[Technique, ...], layout: Layout, splits: tuple[Split, ...]
) -> Candidate | None:
    """The best of ``cost_members`` among ``splits``, all of which fit, without costing each of them."""
    if not all(t.accumulates for t in members):
        splits = tuple(split for split in splits if split[1] == 1)
    known, key = space.memo.best_splits, (members, layout, splits)
    if splits and key not in known:
        known[key] = _find_best_split(space, members, layout, splits)
    return known.get(key)


def _find_best_split(
    space: Space, members: tuple[Technique, ...], layout: Layout, splits: tuple[Split, ...]
) -> Candidate:
    base, cost = build_execution(space, members, layout), space.cost
    rated = sum(map(space.rate_risk, members)), max(map(space.rate_resort, members))
    planned = any(t.explain_unemitted(space.case) for t in members)

    def make(run: Execution, seconds: float) -> Candidate:
        return Candidate(members, layout, run, cost, *rated, seconds, cost.peak_gib(run), True, planned)

    if not grows_by_padding(base) or layout.pp > 1:
        step_seconds, fastest = cost.find_fastest_split(base, splits)
        run = base.but_split(splits[-1] if layout.pp == 1 else fastest)
        best = make(run, rank_seconds(space.case, members, step_seconds))
        if rate_fullness(space, run, best.peak_gib) == 1:
            return best
    rank = SplitRank(space, members, layout)
    runs = [base.but_split(split) for split in splits]
    return min((make(run, rank.next(run, cost.peak_gib(run))) for run in runs), key=lambda candidate: candidate.key)


class SplitRank:
    """What the batch splits of one set of techniques are ranked by, the smallest micro-batch first."""

    def __init__(self, space: Space, members: tuple[Technique, ...], layout: Layout):
        self.space, self.members, self.layout = space, members, layout
        self.least = math.inf
        """seconds of the fastest so far: of a step, or of one of its tokens where the larger have more of them"""

    def next(self, run: Execution, peak_gib: float) -> float:
        """Seconds of the next one, which fits. Without stages a larger micro-batch is never ranked slower: LARGER_IS_FASTER."""
        seconds = rank_seconds(self.space.case, self.members, self.space.cost.step_seconds(run))
        if self.layout.pp == 1:
            tokens = count_computed_tokens(run) if grows_by_padding(run) else 1
            self.least = min(self.least, seconds / tokens)
            seconds = self.least * tokens
        return seconds * rate_fullness(self.space, run, peak_gib)


def grows_by_padding(run: Execution) -> bool:
    """Whether a larger micro-batch computes more tokens of the same texts."""
    return bool(run.length_shares) and run.padding_left > 0


def rate_fullness(space: Space, run: Execution, peak_gib: float) -> float:
    """What a training step is ranked slower by for the memory that it leaves: nothing where that is ample."""
    limit = space.cost.limit_gib
    if space.case.workload.mode != "train":
        return 1.0
    if peak_gib + space.cost.peak_spread_gib(run, peak_gib) > limit:
        return 1 + NARROW_GAIN
    return 1 + PLAINNESS if peak_gib > FULL_SHARE * limit else 1.0


def rank_seconds(case: Case, members: tuple[Technique, ...], step_seconds: float) -> float:
    """A step with 1 % for everything that techniques other than the plain ones add, what one must gain over others of its axis, and
    its share of what is paid once."""
    plain = 1 + PLAINNESS * sum(t.adds for t in members if not t.baseline)
    if case.workload.mode == "infer":
        plain *= 1 + sum(t.least_gain(case) for t in members)
    steps = case.workload.steps
    return step_seconds * plain + (sum(t.once_seconds(case) for t in members) / steps if steps else 0.0)
