"""The best configuration of a space: the answer of plain enumeration, found by branch and bound.

Axes are decided in two parts. Those whose fields have no known order (precision, parallelism, …) are enumerated, with every
layout: a *branch*. A branch cannot be faster than the arithmetic of its products (its *floor*), nor than with the fastest value
of every remaining field (``cost.bounds``), and needs at least the memory of its weights and states. Branches are opened fastest
first, looked at closer each time that their turn comes, and left alone once they cannot beat the best so far: most are never
more than a floor. What is known of a branch holds in every part of a space, so that a plan's counterfactuals (the same space
with one technique fixed) share it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from generator.case.layout import Layout
from generator.cost.execution import Split
from generator.decide.candidates import Candidate, find_best_split, rank_seconds, split_batch
from generator.decide.relaxation import Members, Relaxation, Splits, divide_axes, select_fitting
from generator.decide.space import LAST, Space
from generator.techniques.base import Axis, Technique

RISKS = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True, order=True)
class Branch:
    """Decided techniques and layout, and a time that no completion is faster than."""

    risk: int
    seconds: float
    quality: int
    members: Members = field(compare=False)
    layout: Layout = field(compare=False)
    is_bounded: bool = field(default=False, compare=False)
    """whether ``seconds`` is the least time of a whole step; else it is a floor"""
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
        best: Candidate | None = None
        promising: list[Branch] | None = None
        for risk, resort in list_levels(part):
            # two small risks together are a larger one, which a farther resort may spare: what a later level adds has at least its own
            if best and (best.risk, best.resort) < (risk, resort):
                break
            # looking for what may fit everywhere is worth its time only where a search has found nothing
            if risk and covered and promising is None:
                promising = LevelSearch(part, max(RISKS)).list_promising()
            if promising is not None and not promising:
                break
            level = LevelSearch(part, risk, resort, covered)
            in_level = level.run(promising, (*known, best) if best else known)
            best = min((c for c in (best, in_level) if c), key=lambda c: c.key, default=None)
            if not in_level:
                covered.append(level.admitted)
        if best:
            return best
    return None


def list_levels(space: Space) -> list[tuple[int, int]]:
    """What is accepted, step by step: risk to convergence, and at each risk one resort after the other."""
    members = [t for members in space.open.values() for t in members]
    risks = [risk for risk in RISKS if not risk or any(space.rate_risk(t) == risk for t in members)]
    resorts = sorted({0, *map(space.rate_resort, members)})
    levels = [(risk, resort) for risk in risks for resort in resorts]
    # a level without a member on some axis has no plan
    possible = (all(space.members(axis, risk, resort) for axis in space.axes) for risk, resort in levels)
    return [level for level, usable in zip(levels, possible, strict=True) if usable]


def list_branches(level: LevelSearch) -> list[Branch]:
    """The branches of a level, as closely as they were looked at, but for those that are known not to hold weights and states."""
    known = level.space.root.branches
    listed = []
    for members in level.list_decided():
        for layout in level.space.layouts_of(members):
            if (members, layout) not in known:
                known[members, layout] = make_branch(level.space.root, level.root_relaxation, members, layout)
            listed.append(known[members, layout])
    return [branch for branch in listed if branch is not None]


def make_branch(root: Space, relaxation: Relaxation, members: Members, layout: Layout) -> Branch:
    """What these techniques take at least, divided so: the floor."""
    risk = sum(root.rate_risk(t) for t in members)
    quality = sum(m.quality for m in members)
    run = relaxation.build_run(members, layout, 0).but_split(split_batch(root.case, layout.dp)[0])
    return Branch(risk, rank_seconds(root.case, members, root.cost.floor_seconds(run)), quality, members, layout)


def bound_branch(root: Space, relaxation: Relaxation, branch: Branch) -> Branch | None:
    """The branch with the least time of a whole step; ``None`` where no batch is small enough. Once, for the whole space."""
    key = branch.members, branch.layout
    known = root.branches[key]
    if known is not None and not known.is_bounded:
        run = relaxation.build_run(*key, 0)
        bounded = None
        if relaxation.some_states_fit(branch.members, run) and relaxation.host_may_serve(run):
            seconds = relaxation.least_seconds(branch.members, run, split_batch(root.case, branch.layout.dp))
            bounded = replace(known, seconds=max(seconds, known.seconds), is_bounded=True)
        known = root.branches[key] = bounded
    return known


class LevelSearch:
    """One search among the techniques of at most ``risk`` and ``resort``, but for sets of them that an earlier search
    ``covered`` without finding one that fits."""

    def __init__(self, space: Space, risk: int, resort: int = LAST, covered: Sequence[frozenset[Technique]] = ()):
        self.space, self.case = space, space.case
        self.open = {axis.name: space.members(axis, risk, resort) for axis in space.axes}
        self.admitted = frozenset(t for members in self.open.values() for t in members)
        self.decided, self.bounded, self.memory_axes = divide_axes(space.root)
        # what there is no choice of is decided first: it rules out most
        self.forced = tuple(self.open[axis.name][0] for axis in self.bounded if len(self.open[axis.name]) == 1)
        self.forced_risk = sum(self.space.rate_risk(t) for t in self.forced)
        self.free = [axis for axis in self.bounded if len(self.open[axis.name]) != 1]
        shaping = [place for place, axis in enumerate(self.free, 1) if axis in self.memory_axes]
        self.neutral_from = max(shaping, default=0)
        """the depth from which memory is decided"""
        self.states_from = next((place for place, axis in enumerate(self.free, 1) if axis.name == "optimizer"), 1)
        """the depth from which the optimizer is"""
        self.relaxation = Relaxation(space, self.open, self.free, self.memory_axes)
        self.root_relaxation = Relaxation(space.root, space.root.open, self.bounded, self.memory_axes)
        self.covered = [(techniques, self._rate_rest(techniques)) for techniques in covered]
        self.place = {axis.name: place for place, axis in enumerate(space.axes)}
        self.best: Candidate | None = None

    def _rate_rest(self, techniques: frozenset[Technique]) -> list[int | None]:
        """By depth, the least risk of an open member of the free axes from there on that is not among ``techniques``; ``None``
        where all are."""
        rest = [[t for axis in self.free[depth:] for t in self.open[axis.name]] for depth in range(len(self.free) + 1)]
        fresh = [[self.space.rate_risk(t) for t in members if t not in techniques] for members in rest]
        return [min(risks, default=None) for risks in fresh]

    def run(self, branches: list[Branch] | None = None, seeds: Iterable[Candidate] = ()) -> Candidate | None:
        """The best candidate of ``branches`` (all, if ``None``)."""
        self.space.memo.searches += 1
        for candidate in seeds:
            if self.admits(candidate.members, candidate.layout):
                self.offer(candidate)
        waiting = list_branches(self) if branches is None else [b for b in branches if self.admits(b.members, b.layout)]
        if self.forced_risk or self.covered:
            waiting = [self.rate_branch(branch) for branch in waiting]
        heapq.heapify(waiting)
        while waiting:
            branch = heapq.heappop(waiting)
            if self.is_beaten(branch.risk, branch.seconds):
                break
            if branch.splits:
                self.descend(branch.members, branch, 0)
            elif closer := self.look_closer(branch):
                heapq.heappush(waiting, closer)
        return self.best

    def rate_branch(self, branch: Branch) -> Branch:
        """The branch with the least risk of a completion that no search has covered."""
        members = (*branch.members, *self.forced)
        return replace(branch, risk=branch.risk + self.forced_risk + self.rate_news(members, 0))

    def rate_news(self, members: Members, depth: int) -> int:
        """The least risk that the free axes from ``depth`` on add to these: every search that covered all of them, and found nothing
        that fits, leaves only completions with a technique that it had not."""
        wanted = [rest[depth] for techniques, rest in self.covered if techniques.issuperset(members)]
        return max((risk for risk in wanted if risk), default=0)

    def admits(self, members: Members, layout: Layout) -> bool:
        """Whether this level has these techniques, and the space these devices."""
        inside = self.space.least_devices <= layout.devices <= self.space.most_devices
        return inside and self.admitted.issuperset(members)

    def offer(self, candidate: Candidate) -> None:
        usable = candidate.fits and candidate.peak_gib <= self.space.find_usable_gib(candidate.execution)
        if usable and (self.best is None or candidate.key < self.best.key):
            self.best = candidate

    def is_beaten(self, risk: int, seconds: float) -> bool:
        """Whether nothing of at least this risk and time can still be the best."""
        return self.best is not None and (risk, seconds) > (self.best.risk, self.best.seconds)

    def list_decided(self) -> tuple[Members, ...]:
        """Every set of techniques on the axes that are enumerated which can stand with what there is no choice of."""
        known = self.space.memo.decided  # asked again for every number of devices
        key = (tuple(axis.name for axis in self.decided), *self.open.values())
        if key not in known:
            combined = self.combine(self.decided, ())
            known[key] = tuple(members for members in combined if self.join_forced(members) is not None)
        return known[key]

    def combine(self, axes: list[Axis], chosen: Members) -> Iterator[Members]:
        """Every set of one member per axis without a conflict."""
        if not axes:
            yield chosen
            return
        for technique in self.list_standing(axes[0], chosen):
            yield from self.combine(axes[1:], (*chosen, technique))

    def list_standing(self, axis: Axis, chosen: Members) -> list[Technique]:
        """The open members of an axis that have no conflict with what is chosen."""
        foes = self.space.list_foes(chosen)
        return [t for t in self.open[axis.name] if t not in foes]

    def join_forced(self, members: Members) -> Members | None:
        """With what there is no choice of; ``None`` where that cannot stand together."""
        for technique in self.forced:
            if technique in self.space.list_foes(members):
                return None
            members = (*members, technique)
        return members if self.leaves_choice(members, 0) else None

    def leaves_choice(self, members: Members, depth: int) -> bool:
        """Whether every free axis from ``depth`` on still has a member that can stand beside these."""
        return all(self.relaxation.list_standing(members, depth))

    def look_closer(self, branch: Branch) -> Branch | None:
        """The branch with the next dearer bound; ``None`` where nothing of it fits."""
        if branch.is_bounded:
            return self.tighten(branch)
        bounded = bound_branch(self.space.root, self.root_relaxation, branch)
        return bounded and replace(bounded, risk=branch.risk)

    def tighten(self, branch: Branch) -> Branch | None:
        """The branch with what there is no choice of, and its bounds among the batch splits that may fit; ``None`` if none does."""
        members = self.join_forced(branch.members)
        if members is None or self.is_covered(members, 0):
            return None
        if not self.may_fit(members, branch):
            return None
        splits = split_batch(self.case, branch.layout.dp)
        run = self.relaxation.build_run(members, branch.layout, 0)
        # never below the bound of the whole branch, which fewer splits may lose sight of
        seconds = max(self.relaxation.least_seconds(members, run, splits), branch.seconds)
        return replace(branch, seconds=seconds, members=members, splits=splits)

    def descend(self, members: Members, branch: Branch, depth: int) -> None:
        """Decide the free axes from ``depth`` on, one after the other, each with the most promising member first."""
        if depth == len(self.free):
            ordered = tuple(sorted(members, key=lambda t: self.place[t.axis]))
            splits = self.list_fitting(members, branch)
            if candidate := find_best_split(self.space, ordered, branch.layout, splits):
                self.offer(candidate)
            return
        children = (
            self.look_ahead((*members, t), branch, depth + 1) for t in self.list_standing(self.free[depth], members)
        )
        for child in sorted(child for child in children if child is not None):
            if not self.is_beaten(child.risk, child.seconds):
                self.descend(child.members, child, depth + 1)

    def look_ahead(self, members: Members, branch: Branch, depth: int) -> Branch | None:
        """A part of a branch, with what it takes at least; ``None`` where no completion fits, is new, or can be the best."""
        if not self.leaves_choice(members, depth) or self.is_covered(members, depth):
            return None
        risk = sum(self.space.rate_risk(t) for t in members) + self.rate_news(members, depth)
        if self.is_beaten(risk, branch.seconds):
            return None
        if 2 < depth < self.neutral_from:  # bounds there cost more than they save
            return replace(branch, risk=risk, members=members)
        run = self.relaxation.build_run(members, branch.layout, depth)
        if depth == self.states_from and not self.relaxation.states_fit(run):
            return None
        splits = branch.splits
        if depth == self.neutral_from:
            splits = select_fitting(splits, lambda split: self.relaxation.is_small_enough(run, split))
            if not splits:
                return None
        seconds = self.relaxation.least_seconds(members, run, splits)
        if self.is_beaten(risk, seconds):
            return None
        return replace(branch, risk=risk, seconds=seconds, members=members, splits=splits)

    def is_covered(self, members: Members, depth: int) -> bool:
        """Whether every completion was searched before."""
        return any(rest[depth] is None and techniques.issuperset(members) for techniques, rest in self.covered)

    def list_fitting(self, members: Members, branch: Branch) -> Splits:
        """The batch splits with which a complete set fits the device and the host."""
        run = self.relaxation.build_run(members, branch.layout, len(self.free))

        def fits(split: Split) -> bool:
            return self.relaxation.is_small_enough(run, split) and self.space.cost.fits_host(run.but_split(split))

        return select_fitting(branch.splits, fits)

    def list_promising(self) -> list[Branch]:
        """The branches that may hold anything that fits, in any time."""
        joined = ((b, self.join_forced(b.members)) for b in list_branches(self))
        return [b for b, members in joined if members and self.may_fit(members, b)]

    def may_fit(self, members: Members, branch: Branch) -> bool:
        """Whether any completion of a branch, with what there is no choice of, may fit with any of the batch splits. What did not with
        more to choose from, on as much memory, is not asked again."""
        failed = self.space.memo.misfits.setdefault((branch.members, branch.layout), [])
        gib = self.space.most_gib
        if any(gib <= most and self.admitted <= admitted for admitted, most in failed):
            return False
        fits = self.relaxation.may_fit(members, branch.layout, split_batch(self.case, branch.layout.dp))
        if not fits:
            failed.append((self.admitted, gib))
        return fits
