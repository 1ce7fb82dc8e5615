"""The best configuration of a space: the answer of plain enumeration, found by branch and bound.

Axes are decided in two parts. Those whose fields have no known order (precision, parallelism, …) are enumerated, with every
layout: a *branch*. A branch cannot be faster than with the fastest value of every remaining field (``cost.bounds``), and needs
at least the memory of its weights and states. Branches are opened fastest first, and left alone once they cannot beat the best
so far. They are listed once for a whole space: their bounds hold in every part of it, so that a plan's counterfactuals (the
same space with one technique fixed) share them.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from generator.case.layout import ONE_DEVICE, Layout
from generator.cost.bounds import FASTEST, LEAST_STATES, NEUTRAL, choose_fastest
from generator.cost.execution import Execution
from generator.decide.candidates import (
    Candidate,
    cost_members,
    describe_layout,
    describe_script,
    rank_seconds,
    split_batch,
)
from generator.decide.space import LAST, Space, rate_risk
from generator.techniques.base import Axis, Technique

RISKS = (0, 1, 2, 3)
DEFAULTS = {f.name: f.default for f in fields(Execution)}

Members = tuple[Technique, ...]
Splits = tuple[tuple[int, int], ...]
"""(micro-batch, accumulation), smallest first"""


@dataclass(frozen=True, slots=True, order=True)
class Branch:
    """Decided techniques and layout, and the least time that any completion takes."""

    risk: int
    seconds: float
    quality: int
    members: Members = field(compare=False)
    layout: Layout = field(compare=False)
    splits: Splits = field(default=(), compare=False)
    """the batch splits that may fit, once they are looked for"""


def find_best(space: Space, seeds: Iterable[Candidate] = ()) -> Candidate | None:
    """The best candidate that fits, ``None`` if nothing does: the least risk to convergence at which anything fits, and what
    perfgen can emit before what it can only plan. ``seeds`` are candidates that may be in the space: good ones save work."""
    known = tuple(seeds)
    emitted = space.emitted
    parts = [space] if emitted is space else [emitted, space]
    covered: list[frozenset[Technique]] = []
    for part in parts:
        promising: list[Branch] | None = None
        for risk, resort in list_levels(part):
            level = LevelSearch(part, risk, resort, covered)
            best = level.run(promising, known)
            if best:
                return best
            covered.append(level.admitted)
            if promising is None:
                promising = LevelSearch(part, max(RISKS)).list_promising()
            if not promising:
                break
    return None


def list_levels(space: Space) -> list[tuple[int, int]]:
    """What is accepted, step by step: risk to convergence, and at each risk one resort after the other."""
    members = [t for members in space.open.values() for t in members]
    risks = [risk for risk in RISKS if not risk or any(rate_risk(t, space.case) == risk for t in members)]
    resorts = sorted({0, *(t.last_resort for t in members)})
    levels = [(risk, resort) for risk in risks for resort in resorts]
    # a level without a member on some axis has no plan
    possible = (all(space.members(axis, risk, resort) for axis in space.axes) for risk, resort in levels)
    return [level for level, usable in zip(levels, possible, strict=True) if usable]


def list_branches(space: Space) -> list[Branch]:
    """Every branch of the space's root, what is least risky and fastest first; bounded once."""
    root = space.root
    if not root.branches:
        level = LevelSearch(root, max(RISKS))
        decided, _, _ = divide_axes(root)
        every = (b for members in level.combine(decided, ()) for b in level.bound_branches(members))
        root.branches.extend(sorted(every))
    return root.branches


class LevelSearch:
    """One search among the techniques of at most ``risk`` and ``resort``, but for sets of them that an earlier search
    ``covered`` without finding one that fits."""

    def __init__(self, space: Space, risk: int, resort: int = LAST, covered: Sequence[frozenset[Technique]] = ()):
        self.space, self.case = space, space.case
        self.open = {axis.name: space.members(axis, risk, resort) for axis in space.axes}
        self.admitted = frozenset(t for members in self.open.values() for t in members)
        _, bounded, neutral_from = divide_axes(space.root)
        self.bounded = bounded
        self.memory_axes = bounded[:neutral_from]
        # what there is no choice of is decided first: it rules out most
        self.forced = tuple(self.open[axis.name][0] for axis in bounded if len(self.open[axis.name]) == 1)
        self.forced_risk = sum(rate_risk(t, self.case) for t in self.forced)
        self.free = [axis for axis in bounded if len(self.open[axis.name]) != 1]
        self.neutral_from = sum(axis in self.memory_axes for axis in self.free)
        self.covered = [(techniques, self._covers_rest(techniques)) for techniques in covered]
        self.place = {axis.name: place for place, axis in enumerate(space.axes)}
        self.best: Candidate | None = None
        self._relaxed: dict[tuple[Layout, int], dict[str, Any]] = {}
        self._savings: list[dict[str, Any]] | None = None
        self._optimizers: list[Any] | None = None

    def _covers_rest(self, techniques: frozenset[Technique]) -> list[bool]:
        """By depth, whether all open members of the free axes from there on are among ``techniques``."""
        open_from = [
            [t for axis in self.free[depth:] for t in self.open[axis.name]] for depth in range(len(self.free) + 1)
        ]
        return [techniques.issuperset(members) for members in open_from]

    def run(self, branches: list[Branch] | None = None, seeds: Iterable[Candidate] = ()) -> Candidate | None:
        """The best candidate of ``branches`` (all, if ``None``)."""
        for candidate in seeds:
            if self.admits(candidate.members, candidate.layout):
                self.offer(candidate)
        every = list_branches(self.space) if branches is None else branches
        admitted = (b for b in every if self.admits(b.members, b.layout))
        waiting = [replace(b, risk=b.risk + self.forced_risk) if self.forced_risk else b for b in admitted]
        heapq.heapify(waiting)
        while waiting:
            branch = heapq.heappop(waiting)
            if self.is_beaten(branch.risk, branch.seconds):
                break
            if branch.splits:
                self.descend(branch.members, branch, 0)
            elif tighter := self.tighten(branch):
                heapq.heappush(waiting, tighter)
        return self.best

    def admits(self, members: Members, layout: Layout) -> bool:
        """Whether this level has these techniques, and the space these devices."""
        inside = self.space.least_devices <= layout.devices <= self.space.most_devices
        return inside and self.admitted.issuperset(members)

    def offer(self, candidate: Candidate) -> None:
        usable = candidate.fits and candidate.estimate.peak_memory_gib <= self.space.usable_gib
        if usable and (self.best is None or candidate.key < self.best.key):
            self.best = candidate

    def is_beaten(self, risk: int, seconds: float) -> bool:
        """Whether nothing of at least this risk and time can still be the best."""
        return self.best is not None and (risk, seconds) > (self.best.risk, self.best.seconds)

    def combine(self, axes: list[Axis], chosen: Members) -> Iterator[Members]:
        """Every set of one member per axis without a conflict."""
        if not axes:
            yield chosen
            return
        for technique in self.list_standing(axes[0], chosen):
            yield from self.combine(axes[1:], (*chosen, technique))

    def list_standing(self, axis: Axis, chosen: Members) -> list[Technique]:
        """The open members of an axis that have no conflict with what is chosen."""
        return [t for t in self.open[axis.name] if self.space.list_foes(t).isdisjoint(chosen)]

    def join_forced(self, members: Members) -> Members | None:
        """With what there is no choice of; ``None`` where that cannot stand together."""
        for technique in self.forced:
            if not self.space.list_foes(technique).isdisjoint(members):
                return None
            members = (*members, technique)
        return members if self.leaves_choice(members, 0) else None

    def leaves_choice(self, members: Members, depth: int) -> bool:
        """Whether every free axis from ``depth`` on still has a member that can stand beside these."""
        return all(
            any(self.space.list_foes(t).isdisjoint(members) for t in self.open[axis.name]) for axis in self.free[depth:]
        )

    def bound_branches(self, members: Members) -> Iterator[Branch]:
        """The decided techniques with every layout that can hold weights and states, whatever the batch."""
        risk = sum(rate_risk(t, self.case) for t in members)
        quality = sum(m.quality for m in members)
        for layout in self.space.layouts_of(members):
            run = self.build_run(members, layout, self.relax(layout, 0))
            if self.states_fit(run):
                seconds = self.least_seconds(members, run, split_batch(self.case, layout.dp))
                yield Branch(risk, seconds, quality, members, layout)

    def relax(self, layout: Layout, depth: int) -> dict[str, Any]:
        """The fastest value of every field that the bounded axes from ``depth`` on may set."""
        key = (layout, depth)
        if key not in self._relaxed:
            self._relaxed[key] = self._pick_fastest(layout, self.free[depth:])
        return self._relaxed[key]

    def _pick_fastest(self, layout: Layout, axes: list[Axis]) -> dict[str, Any]:
        options: dict[str, list[Any]] = {}
        effects_of = self.space.effects_on(layout)
        for axis in axes:
            effects = [effects_of(t) for t in self.open[axis.name]]
            for name in {name for e in effects for name in e}:
                options.setdefault(name, []).extend(e.get(name, DEFAULTS[name]) for e in effects)
        return {name: choose_fastest(name, values) for name, values in options.items()}

    def build_run(self, members: Members, layout: Layout, relaxed: dict[str, Any]) -> Execution:
        effects_of, bases = self.space.effects_on(layout), self.space.memo.runs
        decided = {name: value for t in members for name, value in effects_of(t).items()}
        if layout not in bases:
            bases[layout] = Execution(**describe_script(self.case), **describe_layout(layout))
        return bases[layout].but(**{**relaxed, **decided})

    def states_fit(self, run: Execution) -> bool:
        """Whether the device holds weights and states of one of the optimizers, whatever the batch."""
        return any(gib <= self.space.usable_gib for gib in self.list_static_gib(run))

    def list_static_gib(self, run: Execution) -> Iterator[float]:
        """What weights and states take at the optimizer step's moment, by optimizer, the leanest first if their order is that of
        the first run."""
        if run.mode == "infer":
            yield 0.0
            return
        if self._optimizers is None:
            self._optimizers = self.list_values("optimizer")
            self._optimizers.sort(key=lambda name: self.space.cost.static_gib(run.but(optimizer=name)))
        for name in self._optimizers:
            yield self.space.cost.static_gib(run.but(optimizer=name))

    def list_values(self, name: str) -> list[Any]:
        """What the open members may set a field to."""
        effects = [self.space.effects(t, ONE_DEVICE) for members in self.open.values() for t in members]
        return sorted({e[name] for e in effects if name in e}) or [DEFAULTS[name]]

    def least_seconds(self, members: Members, run: Execution, splits: Splits) -> float:
        """None of the splits takes less: each part of a step's time only grows, or only falls, with the micro-batch."""
        known = self.space.memo.seconds
        key = (*vars(run).values(), splits[0], splits[-1])
        if key not in known:
            known[key] = self.space.cost.least_parts(run, splits[0], splits[-1])
        return rank_seconds(self.case, members, known[key])

    def tighten(self, branch: Branch) -> Branch | None:
        """The branch with what there is no choice of, and its bounds among the batch splits that may fit; ``None`` if none does."""
        members = self.join_forced(branch.members)
        if members is None or self.is_covered(members, 0):
            return None
        splits = self.list_splits(members, branch.layout, split_batch(self.case, branch.layout.dp))
        if not splits:
            return None
        seconds = self.least_seconds(
            members, self.build_run(members, branch.layout, self.relax(branch.layout, 0)), splits
        )
        # a split dropped may be what the bound of the whole branch came from
        seconds = max(seconds, branch.seconds)
        return replace(branch, seconds=seconds, members=members, splits=splits)

    def descend(self, members: Members, branch: Branch, depth: int) -> None:
        """Decide the free axes from ``depth`` on, one after the other."""
        if self.is_covered(members, depth) or self.is_hopeless(members, branch, depth):
            return
        if depth == len(self.free):
            ordered = tuple(sorted(members, key=lambda t: self.place[t.axis]))
            for candidate in cost_members(self.space, ordered, branch.layout):
                self.offer(candidate)
            return
        for technique in self.list_standing(self.free[depth], members):
            chosen = (*members, technique)
            if self.leaves_choice(chosen, depth + 1):
                self.descend(chosen, branch, depth + 1)

    def is_covered(self, members: Members, depth: int) -> bool:
        """Whether every completion was searched before."""
        return any(rest[depth] and techniques.issuperset(members) for techniques, rest in self.covered)

    def is_hopeless(self, members: Members, branch: Branch, depth: int) -> bool:
        """Whether no completion fits, or none can be the best."""
        # bounds in between cost more than they save
        if depth != self.neutral_from and (self.best is None or (depth < self.neutral_from and depth != 1)):
            return False
        run = self.build_run(members, branch.layout, self.relax(branch.layout, depth))
        splits = branch.splits
        if depth >= self.neutral_from:
            splits = select_fitting(splits, lambda split: self.is_small_enough(run, split))
            if not splits:
                return True
        if self.best is None:
            return False
        risk = sum(rate_risk(t, self.case) for t in members)
        return self.is_beaten(risk, self.least_seconds(members, run, splits))

    def is_small_enough(self, run: Execution, split: tuple[int, int]) -> bool:
        known = self.space.memo.peaks
        run = run.but(micro_batch=split[0], accumulation=split[1])
        key = tuple(vars(run).values())
        if key not in known:
            known[key] = self.space.cost.peak_gib(run)
        return known[key] <= self.space.usable_gib

    def list_promising(self) -> list[Branch]:
        """The branches that may hold anything that fits, in any time."""
        admitted = (b for b in list_branches(self.space) if self.admits(b.members, b.layout))
        joined = ((b, self.join_forced(b.members)) for b in admitted)
        return [b for b, members in joined if members and self.may_fit(members, b.layout)]

    def may_fit(self, members: Members, layout: Layout) -> bool:
        """Whether any completion may fit: with the smallest micro-batch, or the whole batch."""
        splits = split_batch(self.case, layout.dp)
        return bool(self.list_splits(members, layout, (splits[0], splits[-1])))

    def list_splits(self, members: Members, layout: Layout, splits: Splits) -> Splits:
        """Those of the batch splits with which any completion may fit: what is undecided may save all it can, and no states are
        kept."""
        if self.case.workload.mode == "infer":
            return splits
        run = self.build_run(members, layout, self.relax(layout, 0))
        if not self.states_fit(run) or not self.host_may_hold(run, split_batch(self.case, layout.dp)):
            return ()
        run = run.but(optimizer=LEAST_STATES)
        savings = [run.but(**saving) for saving in self.list_savings()]
        return select_fitting(splits, lambda split: any(self.is_small_enough(r, split) for r in savings))

    def host_may_hold(self, run: Execution, splits: Splits) -> bool:
        """Whether the host can hold what any completion offloads: what is undecided adds to it."""
        limit = self.space.cost.host_limit_gib
        if limit is None:
            return True
        known = self.space.memo.hosts
        run = run.but(dataloader_workers=0, checkpoint_offload=False)
        key = tuple(vars(run).values())
        if key not in known:
            ends = (run.but(micro_batch=m, accumulation=a) for m, a in (splits[0], splits[-1]))
            known[key] = min(sum(part.value for part in self.space.cost.estimate(r).host_memory) for r in ends)
        return known[key] <= limit

    def list_savings(self) -> list[dict[str, Any]]:
        """Every combination of what the undecided axes can set that memory depends on, the optimizer apart."""
        if self._savings is None:
            self._savings = [{}]
            for axis in self.memory_axes:
                distinct = self._list_savings_of(axis)
                self._savings = [have | more for have in self._savings for more in distinct]
            # what is slowest saves most: it is asked first
            self._savings.sort(key=lambda saving: sum(FASTEST[n](v) for n, v in saving.items()), reverse=True)
        return self._savings

    def _list_savings_of(self, axis: Axis) -> list[dict[str, Any]]:
        effects = [self.space.effects(t, ONE_DEVICE) for t in self.open[axis.name]]
        names = {name for e in effects for name in e} - NEUTRAL - {"optimizer", "optimizer_fused"}
        each = [{name: e.get(name, DEFAULTS[name]) for name in names} for e in effects]
        return [values for place, values in enumerate(each) if values not in each[:place]]

    def list_leanest(self, members: Members, layout: Layout) -> Iterator[Members]:
        """Completions that differ in memory: every one of the undecided axes, the leanest optimizer, otherwise the plain."""
        joined = self.join_forced(members)
        axes = [axis for axis in self.memory_axes if axis in self.free and axis.name != "optimizer"]
        for chosen in self.combine(axes, joined) if joined else ():
            rest = [axis for axis in self.free if axis not in axes]
            for axis in rest:
                fitting = self.list_standing(axis, chosen)
                if axis.name == "optimizer":
                    fitting.sort(key=lambda t: self.count_static_gib((*chosen, t), layout))
                chosen = (*chosen, *fitting[:1])
            if len(chosen) == len(self.place):
                yield tuple(sorted(chosen, key=lambda t: self.place[t.axis]))

    def count_static_gib(self, members: Members, layout: Layout) -> float:
        """What the weights and states of a complete set take of the device."""
        run = self.build_run(members, layout, {})
        return self.space.cost.static_gib(run) if run.mode == "train" else 0.0


def select_fitting(splits: Splits, fits: Callable[[tuple[int, int]], bool]) -> Splits:
    """The splits that fit. Memory grows with the micro-batch but for the last step: the whole batch at once sums no gradients
    between passes."""
    *several, last = splits
    fitting = several[: bisect_left(several, True, key=lambda split: not fits(split))]
    return (*fitting, last) if fits(last) else tuple(fitting)


def divide_axes(root: Space) -> tuple[list[Axis], list[Axis], int]:
    """The axes to enumerate; those whose fields have a known order, what device memory depends on first; and how many of
    these it depends on."""
    fields_of: dict[str, set[str]] = {axis.name: list_fields(root, axis) for axis in root.axes}
    decided = [axis for axis in root.axes if not fields_of[axis.name] <= FASTEST.keys()]
    bounded = [axis for axis in root.axes if axis not in decided]
    is_neutral: Callable[[Axis], bool] = lambda axis: fields_of[axis.name] <= NEUTRAL  # noqa: E731
    return decided, sorted(bounded, key=is_neutral), sum(not is_neutral(axis) for axis in bounded)


def list_fields(root: Space, axis: Axis) -> set[str]:
    """The fields of ``Execution`` that the members of an axis set; an axis that divides devices touches them all."""
    members = root.open[axis.name]
    if any(t.id in root.layouts for t in members):
        return {"strategy"}
    return {name for t in members for name in root.effects(t, ONE_DEVICE)}


def find_nearest(space: Space, risk: int = max(RISKS)) -> Candidate | None:
    """The configuration that comes nearest to fitting, on as many devices as each way of dividing can use: what a shortfall is
    measured against."""
    level = LevelSearch(space, risk)
    best: Candidate | None = None

    def rank(candidate: Candidate) -> tuple:
        return candidate.estimate.fullness, candidate.estimate.peak_memory_gib, candidate.key

    for least, members, layout in list_largest(level):
        if best is not None and least > best.estimate.fullness:
            break
        for chosen in level.list_leanest(members, layout):
            first = cost_members(space, chosen, layout)[0]
            if best is None or rank(first) < rank(best):
                best = first
    return best


def list_largest(level: LevelSearch) -> list[tuple[float, Members, Layout]]:
    """Decided techniques on as many devices as they can use, with the share of a device that weights and states take at least,
    the least first."""
    space = level.space
    decided, _, _ = divide_axes(space.root)
    listed = []
    for members in level.combine(decided, ()):
        if level.join_forced(members) is None:
            continue
        layouts = space.layouts_of(members)
        most = max((x.devices for x in layouts), default=0)
        for layout in (x for x in layouts if x.devices == most):
            run = level.build_run(members, layout, level.relax(layout, 0))
            listed.append((min(level.list_static_gib(run)) / space.cost.limit_gib, members, layout))
    return sorted(listed, key=lambda item: item[0])
