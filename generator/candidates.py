"""What may be chosen in a case, and what one choice costs: techniques, a layout of the devices, a batch split."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

from generator.cost import CostModel
from generator.cost.estimate import Estimate
from generator.cost.execution import Execution
from generator.errors import UsageError
from generator.technique import Axis, Technique, axes
from generator.workload import Case, Layout

HEADROOM_SHARE = 0.03
"""Share of the limit that a plan must leave free: the aimed median error of the memory model (issue "decision engine")."""
PLAINNESS = 0.01
"""A technique that gains less than 1 % is not worth its line of code (ours); keeps the ranking a total order."""
LARGER_IS_FASTER = (
    "twice the micro-batch, same global batch: tokens/s 1.14, 1.03, 1.01, 1.01 times (from 2, 4, 8, 16; medians of 200 pairs of "
    "published runs, fms-acceleration, A100-80GB)"
)
ONE_DEVICE = Layout()
LAST = 2
"""the farthest resort"""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One configuration and its cost. ``members`` holds one technique an axis, in the order of the axes."""

    members: tuple[Technique, ...]
    layout: Layout
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
    def standing(self) -> tuple[bool, int, int]:
        """Whether it is only planned, its risk to convergence, and its farthest resort: speed never outweighs them."""
        return any(not t.emitted for t in self.members), self.risk, max(t.resort for t in self.members)

    @property
    def key(self) -> tuple:
        """Its class, then time, fewer passes, fewer devices, less memory; names, so that equals have one order."""
        return (
            *self.standing,
            self.seconds,
            -self.execution.micro_batch,
            self.layout.devices,
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
    layouts: Mapping[str, tuple[Layout, ...]]
    """by the id of the technique that divides the devices"""
    _clashes: dict[tuple[str, str], str | None] = field(default_factory=dict)
    _effects: dict[tuple[str, Layout], Mapping[str, Any]] = field(default_factory=dict)

    def members(self, axis: Axis, risk: int, resort: int = LAST) -> tuple[Technique, ...]:
        """The members of ``axis`` that may be tried when ``risk`` and ``resort`` are the most that is accepted. Where nothing
        else is open (a pin), resorts are always."""
        found = tuple(t for t in self.open[axis.name] if risk_of(t, self.case) <= risk)
        return tuple(t for t in found if t.resort <= resort) or found

    def clash(self, a: Technique, b: Technique) -> str | None:
        """Why ``a`` and ``b`` cannot stand together; asked of both, so that either file may know it."""
        key = (a.id, b.id)
        if key not in self._clashes:
            self._clashes[key] = self._clashes[b.id, a.id] = a.clash(b, self.case) or b.clash(a, self.case)
        return self._clashes[key]

    def effects(self, technique: Technique, layout: Layout) -> Mapping[str, Any]:
        key = (technique.id, layout)
        if key not in self._effects:
            self._effects[key] = technique.effects(replace(self.case, layout=layout))
        return self._effects[key]

    def layouts_of(self, members: tuple[Technique, ...]) -> tuple[Layout, ...]:
        """The ways to divide the devices that ``members`` leave open."""
        said = [self.layouts[t.id] for t in members if t.id in self.layouts]
        return said[0] if said else (ONE_DEVICE,)

    def narrowed(self, open_members: Mapping[str, tuple[Technique, ...]]) -> Space:
        return replace(self, open={**self.open, **open_members})


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
    said = {t.id: t.layouts(case) for members in open_members.values() for t in members}
    layouts = {name: found for name, found in said.items() if found is not None}
    room = Space(case, cost, used, open_members, obstacles, layouts)
    _check_pins(room, [open_members[axis][0] for axis in pins])
    return room


def _check_pins(room: Space, pinned: list[Technique]) -> None:
    """Raises ``UsageError`` for two pins that cannot stand together."""
    for a, b in combinations(pinned, 2):
        if why := room.clash(a, b):
            raise UsageError(f"--pin {a.id} and --pin {b.id} cannot stand together: {why}", "drop one of them")


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


def execution(space: Space, members: tuple[Technique, ...], layout: Layout = ONE_DEVICE) -> Execution:
    """The script that these techniques add up to. Two that set one field is a bug and raises ``ValueError``."""
    fields: dict[str, Any] = {}
    for technique in members:
        for name, value in space.effects(technique, layout).items():
            if fields.get(name, value) != value:
                raise ValueError(
                    f"{technique.id} sets {name}={value!r}, which another technique set to {fields[name]!r}"
                )
            fields[name] = value
    return Execution(**script(space.case), **divided(layout), **fields)


def script(case: Case) -> dict[str, Any]:
    """What the workload says of the script."""
    workload = case.workload
    served = {"new_tokens": workload.new_tokens} if workload.mode == "infer" else {}
    told = {"mode": workload.mode, "seq_len": workload.seq_len, "from_scratch": workload.from_scratch}
    return told | served


def divided(layout: Layout) -> dict[str, Any]:
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


def batches(case: Case, dp: int = 1) -> tuple[tuple[int, int], ...]:
    """(micro-batch, accumulation) that with ``dp`` copies give the global batch, smallest first. Inference serves its
    concurrency."""
    if case.workload.mode == "infer":
        return ((case.workload.concurrency, 1),)
    total = case.workload.global_batch // dp
    small = [d for d in range(1, int(total**0.5) + 1) if total % d == 0]
    divisors = sorted({*small, *(total // d for d in small)})
    return tuple((d, total // d) for d in divisors)


def cost_of(space: Space, members: tuple[Technique, ...], layout: Layout | None = None) -> list[Candidate]:
    """Every layout and batch split of one combination, each layout up to the first split that does not fit (memory only
    grows from there)."""
    if layout is None:
        return [c for one in space.layouts_of(members) for c in cost_of(space, members, one)]
    case = space.case
    base = execution(space, members, layout)
    total_risk = sum(risk_of(t, case) for t in members)
    found: list[Candidate] = []
    for micro, accumulation in batches(case, layout.dp):
        if accumulation > 1 and not all(t.accumulates for t in members):
            continue
        run = base.but(micro_batch=micro, accumulation=accumulation)
        estimate = space.cost.estimate(run)
        seconds = ranked_seconds(case, members, estimate.step_seconds)
        if found and fits(estimate) and layout.pp == 1:
            seconds = min(seconds, found[-1].seconds)  # a larger micro-batch is never ranked slower: LARGER_IS_FASTER
        found.append(Candidate(members, layout, run, estimate, total_risk, seconds))
        if not fits(estimate):
            break
    return found


def ranked_seconds(case: Case, members: tuple[Technique, ...], step_seconds: float) -> float:
    """A step with 1 % for everything that techniques other than the plain ones add, and its share of what is paid once."""
    plain = 1 + PLAINNESS * sum(t.adds for t in members if not t.baseline)
    steps = case.workload.steps or case.workload.max_steps
    return step_seconds * plain + (sum(t.once_seconds(case) for t in members) / steps if steps else 0.0)


def risk_of(technique: Technique, case: Case) -> int:
    """What it may do to convergence; nothing where the user asked for it."""
    asked = {*case.workload.allow, *(f"{a}={n}" for a, n in case.workload.pins)}
    return 0 if technique.name in asked or technique.id in asked else technique.quality
