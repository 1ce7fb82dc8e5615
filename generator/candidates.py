"""Search is enumeration: the product of the axes minus obstacles and clashes, costed and ranked."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from generator.cost import CostModel
from generator.cost.estimate import Estimate
from generator.cost.execution import Execution
from generator.errors import UsageError
from generator.technique import Axis, Technique, axes
from generator.workload import Case

HEADROOM_SHARE = 0.03
"""Share of the limit that a plan must leave free: the aimed median error of the memory model (issue "decision engine")."""
PLAINNESS = 0.01
"""A technique that gains less than 1 % is not worth its line of code (ours); keeps the ranking a total order."""
RISKS = (0, 1, 2, 3)
LARGER_IS_FASTER = (
    "twice the micro-batch, same global batch: tokens/s 1.14, 1.03, 1.01, 1.01 times (from 2, 4, 8, 16; medians of 200 pairs of "
    "published runs, fms-acceleration, A100-80GB)"
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One configuration and its cost. ``members`` holds one technique an axis, in the order of the axes."""

    members: tuple[Technique, ...]
    execution: Execution
    estimate: Estimate
    risk: int
    seconds: float
    """what it is ranked by: a step, its share of the one-time costs, and 1 % a technique that is not the plain one"""

    @property
    def choice(self) -> dict[str, str]:
        return {t.axis: t.name for t in self.members}

    @property
    def fits(self) -> bool:
        return fits(self.estimate)

    @property
    def key(self) -> tuple:
        """Least risk to convergence, then time, then fewer passes, then memory, then names (so that equals have one order)."""
        return (
            self.risk,
            self.seconds,
            -self.execution.micro_batch,
            self.estimate.peak_memory_gib,
            tuple(t.id for t in self.members),
        )


def fits(estimate: Estimate) -> bool:
    """Within the limit, with headroom."""
    return estimate.fits and estimate.peak_memory_gib <= estimate.limit_gib * (1 - HEADROOM_SHARE)


@dataclass(frozen=True, slots=True)
class Space:
    """What may be chosen in a case: per axis the members without obstacle, and for the others why not."""

    case: Case
    cost: CostModel
    axes: tuple[Axis, ...]
    open: Mapping[str, tuple[Technique, ...]]
    obstacles: Mapping[str, str]

    def members(self, axis: Axis, risk: int) -> tuple[Technique, ...]:
        """The members of ``axis`` that may be tried when ``risk`` is the most that is accepted."""
        return tuple(t for t in self.open[axis.name] if risk_of(t, self.case) <= risk)


def space(case: Case, cost: CostModel) -> Space:
    """Obstacles and pins applied. Raises ``UsageError`` for a pin that is unknown or impossible."""
    mode = case.workload.mode
    pins = _pins(case, mode)
    _check_allowed(case)
    open_members: dict[str, tuple[Technique, ...]] = {}
    obstacles: dict[str, str] = {}
    used = tuple(a for a in axes() if a.for_mode(mode))
    for axis in used:
        members = []
        for technique in axis.for_mode(mode):
            why = technique.obstacle(case) or _unasked(technique, pins)
            if why:
                obstacles[technique.id] = why
            else:
                members.append(technique)
        if axis.name in pins:
            members = [_pinned(axis, pins[axis.name], obstacles, mode)]
        open_members[axis.name] = tuple(members)
    return Space(case, cost, used, open_members, obstacles)


def _unasked(technique: Technique, pins: Mapping[str, str]) -> str | None:
    if technique.request_only and pins.get(technique.axis) != technique.name:
        return f"{technique.request_only}; only on request: --pin {technique.id}"
    return None


def _pins(case: Case, mode: str) -> dict[str, str]:
    pins: dict[str, str] = {}
    known = {a.name for a in axes() if a.for_mode(mode)}
    for axis, name in case.workload.pins:
        if axis not in known:
            raise UsageError(f"--pin {axis}={name}: there is no axis {axis}", f"axes are {', '.join(sorted(known))}")
        if pins.get(axis, name) != name:
            raise UsageError(f"--pin {axis}={pins[axis]} and --pin {axis}={name} contradict each other")
        pins[axis] = name
    return pins


def _check_allowed(case: Case) -> None:
    known = {name for a in axes() for t in a.members for name in (t.name, t.id)}
    for name in case.workload.allow:
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), 3)
            hint = f"did you mean {', '.join(near)}?" if near else "`perfgen techniques` lists them"
            raise UsageError(f"--allow {name}: there is no such technique", hint)


def _pinned(axis: Axis, name: str, obstacles: Mapping[str, str], mode: str) -> Technique:
    names = [t.name for t in axis.for_mode(mode)]
    if name not in names:
        raise UsageError(f"--pin {axis.name}={name}: no such technique", f"{axis.name} has {', '.join(names)}")
    pinned = next(t for t in axis.for_mode(mode) if t.name == name)
    if pinned.id in obstacles:
        raise UsageError(
            f"--pin {pinned.id} cannot be used here: {obstacles[pinned.id]}", "drop the pin, or change what it says"
        )
    return pinned


def combinations(space: Space, risk: int) -> Iterator[tuple[Technique, ...]]:
    """Every set of one member an axis without a clash."""
    per_axis = [space.members(axis, risk) for axis in space.axes]

    def extend(chosen: tuple[Technique, ...]) -> Iterator[tuple[Technique, ...]]:
        if len(chosen) == len(per_axis):
            yield chosen
            return
        for technique in per_axis[len(chosen)]:
            if not any(clash(technique, other, space.case) for other in chosen):
                yield from extend((*chosen, technique))

    yield from extend(())


def clash(a: Technique, b: Technique, case: Case) -> str | None:
    """Why ``a`` and ``b`` cannot stand together; asked of both, so that either file may know it."""
    return a.clash(b, case) or b.clash(a, case)


def execution(case: Case, members: tuple[Technique, ...]) -> Execution:
    """The script that these techniques add up to. Two that set one field is a bug and raises ``ValueError``."""
    fields: dict[str, Any] = {}
    for technique in members:
        for name, value in technique.effects(case).items():
            if fields.get(name, value) != value:
                raise ValueError(
                    f"{technique.id} sets {name}={value!r}, which another technique set to {fields[name]!r}"
                )
            fields[name] = value
    workload = case.workload
    return Execution(mode=workload.mode, seq_len=workload.seq_len, **fields)


def batches(case: Case) -> tuple[tuple[int, int], ...]:
    """(micro-batch, accumulation) whose product is the global batch, smallest first. Inference serves its concurrency."""
    if case.workload.mode == "infer":
        return ((case.workload.concurrency, 1),)
    total = case.workload.global_batch
    small = [d for d in range(1, int(total**0.5) + 1) if total % d == 0]
    divisors = sorted({*small, *(total // d for d in small)})
    return tuple((d, total // d) for d in divisors)


def cost_of(space: Space, members: tuple[Technique, ...]) -> list[Candidate]:
    """Every batch split of one combination, up to the first that does not fit (memory only grows from there)."""
    case = space.case
    base = execution(case, members)
    if case.workload.mode == "infer":
        base = replace(base, new_tokens=case.workload.new_tokens)
    plain = 1 + PLAINNESS * sum(not t.baseline for t in members)
    once = sum(t.once_seconds(case) for t in members)
    steps = case.workload.steps or case.workload.max_steps
    total_risk = sum(risk_of(t, case) for t in members)
    found = []
    for micro, accumulation in batches(case):
        run = replace(base, micro_batch=micro, accumulation=accumulation)
        estimate = space.cost.estimate(run)
        seconds = estimate.step_seconds * plain + (once / steps if steps else 0.0)
        if found and fits(estimate):  # a larger micro-batch is never ranked slower: LARGER_IS_FASTER
            seconds = min(seconds, found[-1].seconds)
        found.append(Candidate(members, run, estimate, total_risk, seconds))
        if not fits(estimate):
            break
    return found


def risk_of(technique: Technique, case: Case) -> int:
    """What it may do to convergence; nothing where the user asked for it."""
    asked = {*case.workload.allow, *(f"{a}={n}" for a, n in case.workload.pins)}
    return 0 if technique.name in asked or technique.id in asked else technique.quality


def search(space: Space) -> list[Candidate]:
    """All candidates that fit at the least risk that fits anything, best first; empty if nothing fits at any."""
    for risk in RISKS:
        fresh = (m for m in combinations(space, risk) if not risk or any(risk_of(t, space.case) == risk for t in m))
        found = [c for members in fresh for c in cost_of(space, members) if c.fits]
        if found:
            return sorted(found, key=lambda c: c.key)
    return []


def smallest(space: Space) -> Candidate | None:
    """The configuration that needs least memory at any risk: what the shortfall is measured against."""
    everything = (c for members in combinations(space, max(RISKS)) for c in cost_of(space, members)[:1])
    return min(everything, key=lambda c: (c.estimate.peak_memory_gib, c.key), default=None)
