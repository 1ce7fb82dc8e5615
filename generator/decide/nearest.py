"""The configuration that comes nearest to fitting: what a shortfall is measured against."""

from __future__ import annotations

from collections.abc import Iterator

from generator.case.layout import Layout
from generator.decide.candidates import Candidate, cost_members, split_batch
from generator.decide.relaxation import Members
from generator.decide.search import RISKS, LevelSearch
from generator.decide.space import Space
from generator.techniques.base import Technique

Needs = tuple[float, float]
"""The share of a device or of the host, whichever is scarcer, and GiB of a device: where the host is short, candidates share the
first."""


def find_nearest(space: Space, risk: int = max(RISKS)) -> Candidate | None:
    """The candidate of at most this risk that is least too large, on as many devices as each way of dividing can use; ``None``
    where no techniques can stand together."""
    level = LevelSearch(space, risk)
    best: Candidate | None = None

    def rank(candidate: Candidate) -> tuple:
        return candidate.estimate.fullness, candidate.estimate.peak_memory_gib, candidate.key

    for least, members, layout in list_largest(level):
        if best is not None and least > rank(best)[:2]:
            break
        for chosen in list_leanest(level, members, layout):
            if best is not None and bound_needs(level, chosen, layout) > rank(best)[:2]:
                continue
            # the whole batch at once may need less than the smallest micro-batch: it sums no gradients between passes
            leanest = min(cost_members(space, chosen, layout), key=rank)
            if best is None or rank(leanest) < rank(best):
                best = leanest
    return best


def list_largest(level: LevelSearch) -> list[tuple[Needs, Members, Layout]]:
    """Decided techniques on as many devices as they can use, with what their weights and states need at least, the least
    first."""
    space, relaxation = level.space, level.relaxation
    listed = []
    for members in level.list_decided():
        layouts = space.layouts_of(members)
        most = max((x.devices for x in layouts), default=0)
        for layout in (x for x in layouts if x.devices == most):
            run = relaxation.build_run(members, layout, 0)
            gib, host = min(relaxation.list_static_gib(members, run)), relaxation.find_least_host_gib(run)
            listed.append((measure_needs(space, gib, host), members, layout))
    return sorted(listed, key=lambda item: item[0])


def list_leanest(level: LevelSearch, members: Members, layout: Layout) -> Iterator[Members]:
    """Completions that differ in memory: every one of the undecided axes, the leanest optimizer, otherwise the plain."""
    joined = level.join_forced(members)
    axes = [axis for axis in level.free if axis in level.memory_axes and axis.name != "optimizer"]
    for chosen in level.combine(axes, joined) if joined else ():
        for axis in (axis for axis in level.free if axis not in axes):
            fitting = level.list_standing(axis, chosen)
            if axis.name == "optimizer" and fitting:
                fitting = [find_leanest_optimizer(level, chosen, fitting, layout)]
            chosen = (*chosen, *fitting[:1])
        if len(chosen) == len(level.place):
            yield tuple(sorted(chosen, key=lambda t: level.place[t.axis]))


def bound_needs(level: LevelSearch, members: Members, layout: Layout) -> Needs:
    """What a complete set of techniques needs at least."""
    run = level.relaxation.build_run(members, layout, len(level.free))
    splits = split_batch(level.case, layout.dp)
    ends = (splits[0], splits[-1])
    peak = min(level.relaxation.find_peak_gib(run, split) for split in ends)
    return measure_needs(level.space, peak, level.relaxation.find_host_gib(run, ends))


def measure_needs(space: Space, gib: float, host_gib: float) -> Needs:
    limit = space.cost.host_limit_gib
    return max(gib / space.cost.limit_gib, host_gib / limit if limit else 0.0), gib


def find_leanest_optimizer(level: LevelSearch, chosen: Members, fitting: list[Technique], layout: Layout) -> Technique:
    """With which optimizer the weights and states of what is chosen take least of the device."""
    relaxation, space = level.relaxation, level.space
    run = relaxation.build_run(chosen, layout, len(level.free))
    return min(fitting, key=lambda t: relaxation.find_static_gib(run.but(**space.effects(t, layout))))
