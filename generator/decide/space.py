"""What may be chosen in a case: techniques without obstacle, pins applied."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

from generator.case.case import Case
from generator.case.layout import ONE_DEVICE, Layout
from generator.cost import CostModel
from generator.errors import UsageError
from generator.techniques.base import Axis, Technique, explain_conflict, list_axes

LAST = 2
"""the farthest resort"""


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
    _conflicts: dict[tuple[str, str], str | None] = field(default_factory=dict)
    _effects: dict[tuple[str, Layout], Mapping[str, Any]] = field(default_factory=dict)

    def members(self, axis: Axis, risk: int, resort: int = LAST) -> tuple[Technique, ...]:
        """The members of ``axis`` that may be tried when ``risk`` and ``resort`` are the most that is accepted. Where nothing
        else is open (a pin), resorts are always."""
        found = tuple(t for t in self.open[axis.name] if rate_risk(t, self.case) <= risk)
        return tuple(t for t in found if t.last_resort <= resort) or found

    def conflict(self, a: Technique, b: Technique) -> str | None:
        """Why ``a`` and ``b`` cannot stand together."""
        key = (a.id, b.id)
        if key not in self._conflicts:
            self._conflicts[key] = self._conflicts[b.id, a.id] = explain_conflict(a, b, self.case)
        return self._conflicts[key]

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


def open_space(case: Case, cost: CostModel) -> Space:
    """Obstacles and pins applied. Raises ``UsageError`` for a pin that is unknown or impossible."""
    mode = case.workload.mode
    pins = _collect_pins(case, mode)
    _check_allowed(case)
    open_members: dict[str, tuple[Technique, ...]] = {}
    obstacles: dict[str, str] = {}
    used = tuple(a for a in list_axes() if a.for_mode(mode))
    for axis in used:
        members = []
        for technique in axis.for_mode(mode):
            why = technique.obstacle(case) or _explain_unasked(technique, pins)
            if why:
                obstacles[technique.id] = why
            else:
                members.append(technique)
        if axis.name in pins:
            members = [_resolve_pin(axis, pins[axis.name], obstacles, mode)]
        open_members[axis.name] = tuple(members)
    said = {t.id: t.layouts(case) for members in open_members.values() for t in members}
    layouts = {name: found for name, found in said.items() if found is not None}
    room = Space(case, cost, used, open_members, obstacles, layouts)
    _check_pins(room, [open_members[axis][0] for axis in pins])
    return room


def _check_pins(room: Space, pinned: list[Technique]) -> None:
    """Raises ``UsageError`` for two pins that cannot stand together."""
    for a, b in combinations(pinned, 2):
        if why := room.conflict(a, b):
            raise UsageError(f"--pin {a.id} and --pin {b.id} cannot stand together: {why}", "drop one of them")


def _explain_unasked(technique: Technique, pins: Mapping[str, str]) -> str | None:
    if technique.request_only and pins.get(technique.axis) != technique.name:
        return f"{technique.request_only}; only on request: --pin {technique.id}"
    return None


def _collect_pins(case: Case, mode: str) -> dict[str, str]:
    pins: dict[str, str] = {}
    known = {a.name for a in list_axes() if a.for_mode(mode)}
    for axis, name in case.workload.pins:
        if axis not in known:
            raise UsageError(f"--pin {axis}={name}: there is no axis {axis}", f"axes are {', '.join(sorted(known))}")
        if pins.get(axis, name) != name:
            raise UsageError(f"--pin {axis}={pins[axis]} and --pin {axis}={name} contradict each other")
        pins[axis] = name
    return pins


def _check_allowed(case: Case) -> None:
    known = {name for a in list_axes() for t in a.members for name in (t.name, t.id)}
    for name in case.workload.allow:
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), 3)
            hint = f"did you mean {', '.join(near)}?" if near else "`perfgen techniques` lists them"
            raise UsageError(f"--allow {name}: there is no such technique", hint)


def _resolve_pin(axis: Axis, name: str, obstacles: Mapping[str, str], mode: str) -> Technique:
    names = [t.name for t in axis.for_mode(mode)]
    if name not in names:
        raise UsageError(f"--pin {axis.name}={name}: no such technique", f"{axis.name} has {', '.join(names)}")
    pinned = next(t for t in axis.for_mode(mode) if t.name == name)
    if pinned.id in obstacles:
        raise UsageError(
            f"--pin {pinned.id} cannot be used here: {obstacles[pinned.id]}", "drop the pin, or change what it says"
        )
    return pinned


def rate_risk(technique: Technique, case: Case) -> int:
    """What it may do to convergence; nothing where the user asked for it."""
    asked = {*case.workload.allow, *(f"{a}={n}" for a, n in case.workload.pins)}
    return 0 if technique.name in asked or technique.id in asked else technique.quality
