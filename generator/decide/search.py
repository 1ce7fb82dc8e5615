"""The best configurations of a space: the answer of plain enumeration, found by branch and bound.

Axes are decided in two parts. Those whose fields have no known order (precision, parallelism, …) are enumerated, with every
layout: a *node*. A node cannot be faster than with the fastest value of every remaining field (``cost.bounds``), and needs at
least the memory of its weights and states. Nodes are opened fastest first, and left alone once they cannot beat the best so far.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from generator.case.layout import Layout
from generator.cost.bounds import FASTEST, LEAST_STATES, NEUTRAL, choose_fastest
from generator.cost.execution import Execution
from generator.decide.candidates import (
    HEADROOM_SHARE,
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
KEPT = 6
"""the choice and its runners-up"""
DEFAULTS = {f.name: f.default for f in fields(Execution)}

Members = tuple[Technique, ...]


@dataclass(slots=True)
class Best:
    """The best candidate of each of the ``kept`` best choices so far."""

    kept: int
    found: dict[Members, Candidate] = field(default_factory=dict)

    def add(self, candidate: Candidate) -> None:
        have = self.found.get(candidate.members)
        if have is None or candidate.key < have.key:
            self.found[candidate.members] = candidate
            if len(self.found) > self.kept:
                del self.found[max(self.found, key=lambda m: self.found[m].key)]

    @property
    def full(self) -> bool:
        return len(self.found) == self.kept

    def beaten(self, risk: int, seconds: float) -> bool:
        """Whether nothing of at least this risk and time can still enter."""
        if not self.full:
            return False
        worst = max(self.found.values(), key=lambda c: c.key)
        return (risk, seconds) > (worst.risk, worst.seconds)

    def ranked(self) -> list[Candidate]:
        return sorted(self.found.values(), key=lambda c: c.key)


def search_space(space: Space, kept: int = KEPT) -> list[Candidate]:
    """The best candidates that fit, best first, one a set of techniques; empty if nothing fits.

    The least risk to convergence at which anything fits, and what perfgen can emit before what it can only plan.
    """
    emitted = {axis: tuple(t for t in members if t.emitted) or members for axis, members in space.open.items()}
    rooms = [space.narrowed(emitted), space] if emitted != dict(space.open) else [space]
    for room in rooms:
        for risk, resort in list_levels(room):
            found = Level(room, risk, resort).search(kept)
            if found:
                return found
            if (risk, resort) == (0, 0) and not Level(room, max(RISKS)).anything_fits():
                break
    return []


def list_levels(space: Space) -> list[tuple[int, int]]:
    """What is accepted, step by step: risk to convergence, and at each risk one resort after the other."""
    members = [t for members in space.open.values() for t in members]
    risks = [risk for risk in RISKS if not risk or any(rate_risk(t, space.case) == risk for t in members)]
    resorts = sorted({0, *(t.last_resort for t in members)})
    return [(risk, resort) for risk in risks for resort in resorts]


@dataclass(frozen=True, slots=True, order=True)
class Node:
    """Decided techniques and layout, and the least time that any completion takes."""

    risk: int
    seconds: float
    place: int
    members: Members = field(compare=False)
    layout: Layout = field(compare=False)


class Level:
    """One search: the techniques of at most ``risk``, at least one of which has exactly that risk; and resort."""

    def __init__(self, space: Space, risk: int, resort: int = LAST):
        self.space, self.case, self.risk = space, space.case, risk
        self.open = {axis.name: space.members(axis, risk, resort) for axis in space.axes}
        bounded = [axis for axis in space.axes if self.touched(axis) <= FASTEST.keys()]
        self.decided = [axis for axis in space.axes if axis not in bounded]
        # what device memory depends on comes first
        self.bounded = sorted(bounded, key=lambda axis: self.touched(axis) <= NEUTRAL)
        self.neutral_from = sum(not self.touched(axis) <= NEUTRAL for axis in bounded)
        self.optimizers = self.values("optimizer")
        self.usable_gib = space.cost.limit_gib * (1 - HEADROOM_SHARE)
        self.place = {axis.name: place for place, axis in enumerate(space.axes)}
        self.savings = self.memory_fields()
        self._relaxed: dict[tuple[Layout, int], dict[str, Any]] = {}

    def touched(self, axis: Axis) -> set[str]:
        """The fields of ``Execution`` that the members of an axis set; an axis that divides devices touches them all."""
        members = self.open[axis.name]
        if any(t.id in self.space.layouts for t in members):
            return {"strategy"}
        return {name for t in members for name in self.space.effects(t, Layout())}

    def values(self, name: str) -> list[Any]:
        """What the open members may set a field to."""
        effects = [self.space.effects(t, Layout()) for members in self.open.values() for t in members]
        return sorted({e[name] for e in effects if name in e}) or [DEFAULTS[name]]

    def search(self, kept: int) -> list[Candidate]:
        best = Best(kept)
        nodes = [node for members in self.combine(self.decided, ()) for node in self.nodes(members)]
        heapq.heapify(nodes)
        while nodes:
            node = heapq.heappop(nodes)
            if best.beaten(node.risk, node.seconds):
                break
            self.open_node(node, best)
        return best.ranked()

    def combine(self, axes: list[Axis], chosen: Members) -> Iterator[Members]:
        """Every set of one member an axis without a conflict."""
        if not axes:
            yield chosen
            return
        for technique in self.open[axes[0].name]:
            if self.stands(technique, chosen):
                yield from self.combine(axes[1:], (*chosen, technique))

    def stands(self, technique: Technique, chosen: Members) -> bool:
        return not any(self.space.conflict(technique, other) for other in chosen)

    def nodes(self, members: Members) -> Iterator[Node]:
        risk = sum(rate_risk(t, self.case) for t in members)
        for layout in self.space.layouts_of(members):
            run = self.execution(members, layout, self.relaxed(layout, 0))
            if self.static_gib(run) <= self.usable_gib:
                place = sum(m.quality for m in members)
                yield Node(risk, self.least_seconds(members, run, layout), place, members, layout)

    def relaxed(self, layout: Layout, depth: int) -> dict[str, Any]:
        """The fastest value of every field that the bounded axes from ``depth`` on may set."""
        key = (layout, depth)
        if key not in self._relaxed:
            self._relaxed[key] = self._fastest(layout, depth)
        return self._relaxed[key]

    def _fastest(self, layout: Layout, depth: int) -> dict[str, Any]:
        options: dict[str, list[Any]] = {}
        for axis in self.bounded[depth:]:
            effects = [self.space.effects(t, layout) for t in self.open[axis.name]]
            for name in {name for e in effects for name in e}:
                options.setdefault(name, []).extend(e.get(name, DEFAULTS[name]) for e in effects)
        return {name: choose_fastest(name, values) for name, values in options.items()}

    def execution(self, members: Members, layout: Layout, relaxed: dict[str, Any]) -> Execution:
        told = {name: value for t in members for name, value in self.space.effects(t, layout).items()}
        return Execution(**{**describe_script(self.case), **describe_layout(layout), **relaxed, **told})

    def static_gib(self, run: Execution) -> float:
        """Weights and states, whatever the batch: the optimizer step's moment, with the leanest optimizer."""
        if run.mode == "infer":
            return 0.0
        return min(self.space.cost.static_gib(run.but(optimizer=name)) for name in self.optimizers)

    def least_seconds(self, members: Members, run: Execution, layout: Layout) -> float:
        """No batch split takes less: each part of a step's time only grows, or only falls, with the micro-batch."""
        splits = split_batch(self.case, layout.dp)
        parts = self.space.cost.least_parts(run, splits[0], splits[-1])
        return rank_seconds(self.case, members, parts)

    def open_node(self, node: Node, best: Best) -> None:
        if not self.may_fit(node.members, node.layout):
            return
        relaxed = [self.relaxed(node.layout, depth) for depth in range(len(self.bounded) + 1)]

        def hopeless(members: Members, depth: int) -> bool:
            at_memory = depth == self.neutral_from
            if not at_memory and (not best.full or 1 < depth < self.neutral_from):
                return False
            run = self.execution(members, node.layout, relaxed[depth])
            if at_memory and not self.any_fits(run, node.layout):
                return True
            risk = sum(rate_risk(t, self.case) for t in members)
            return best.full and best.beaten(risk, self.least_seconds(members, run, node.layout))

        def descend(members: Members, depth: int) -> None:
            if hopeless(members, depth):
                return
            if depth == len(self.bounded):
                self.add(members, node.layout, best)
                return
            for technique in self.open[self.bounded[depth].name]:
                if self.stands(technique, members):
                    descend((*members, technique), depth + 1)

        descend(node.members, 0)

    def anything_fits(self) -> bool:
        """False only where nothing fits, at any time."""
        return any(
            self.static_gib(self.execution(members, layout, self.relaxed(layout, 0))) <= self.usable_gib
            and self.may_fit(members, layout)
            for members in self.combine(self.decided, ())
            for layout in self.space.layouts_of(members)
        )

    def may_fit(self, members: Members, layout: Layout) -> bool:
        """Whether any completion's smallest micro-batch fits: what is undecided may save all it can, and no states are kept."""
        if self.case.workload.mode == "infer":
            return True
        run = self.execution(members, layout, self.relaxed(layout, 0) | {"optimizer": LEAST_STATES})
        return any(self.any_fits(run.but(**saving), layout) for saving in self.savings)

    def memory_fields(self) -> list[dict[str, Any]]:
        """Every combination of what the undecided axes can set that memory depends on, the optimizer apart."""
        found: list[dict[str, Any]] = [{}]
        for axis in self.bounded[: self.neutral_from]:
            effects = [self.space.effects(t, Layout()) for t in self.open[axis.name]]
            names = {name for e in effects for name in e} - NEUTRAL - {"optimizer", "optimizer_fused"}
            each = [{name: e.get(name, DEFAULTS[name]) for name in names} for e in effects]
            distinct = [fields for place, fields in enumerate(each) if fields not in each[:place]]
            found = [have | fields for have in found for fields in distinct]
        return found

    def add(self, members: Members, layout: Layout, best: Best) -> None:
        """A complete set of techniques: cost every batch split of it."""
        if self.risk and not any(rate_risk(t, self.case) == self.risk for t in members):
            return
        ordered = tuple(sorted(members, key=lambda t: self.place[t.axis]))
        for candidate in cost_members(self.space, ordered, layout):
            if candidate.fits:
                best.add(candidate)

    def leanest(self, members: Members, layout: Layout) -> Iterator[Members]:
        """Completions that differ in memory: every one of the undecided axes, the leanest optimizer, otherwise the plain."""
        axes = [axis for axis in self.bounded[: self.neutral_from] if axis.name != "optimizer"]
        for chosen in self.combine(axes, members):
            rest = [axis for axis in self.bounded if axis.name not in {t.axis for t in chosen}]
            for axis in rest:
                fitting = [t for t in self.open[axis.name] if self.stands(t, chosen)]
                if axis.name == "optimizer":
                    fitting.sort(key=lambda t: self.least_full((*chosen, t), layout))
                chosen = (*chosen, *fitting[:1])
            if len(chosen) == len(self.place):
                yield tuple(sorted(chosen, key=lambda t: self.place[t.axis]))

    def least_full(self, members: Members, layout: Layout) -> float:
        """Share of the device's memory that the weights and states of a complete set take."""
        run = self.execution(members, layout, {})
        return self.space.cost.static_gib(run) / self.space.cost.limit_gib if run.mode == "train" else 0.0

    def any_fits(self, run: Execution, layout: Layout) -> bool:
        """Whether the smallest micro-batch fits the device (memory only grows from there)."""
        micro, accumulation = split_batch(self.case, layout.dp)[0]
        return self.space.cost.peak_gib(run.but(micro_batch=micro, accumulation=accumulation)) <= self.usable_gib


def find_smallest(space: Space) -> Candidate | None:
    """The configuration that comes nearest to fitting, on as many devices as each way of dividing can use: what a shortfall is
    measured against."""
    level = Level(space, max(RISKS))
    best: Candidate | None = None

    def need(candidate: Candidate) -> tuple:
        return candidate.estimate.fullness, candidate.estimate.peak_memory_gib, candidate.key

    for members in level.combine(level.decided, ()):
        layouts = space.layouts_of(members)
        most = max((x.devices for x in layouts), default=0)
        for layout in (x for x in layouts if x.devices == most):
            for chosen in level.leanest(members, layout):
                first = cost_members(space, chosen, layout)[0]
                if best is None or need(first) < need(best):
                    best = first
    return best
