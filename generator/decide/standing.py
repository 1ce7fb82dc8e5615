"""Whether any techniques can stand together at all, and the fewest pins that rule it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from generator.case.case import Case
from generator.decide.space import Space, open_space
from generator.errors import NothingFits, PerfgenError, UsageError
from generator.techniques.base import Technique

SHOWN = 3
"""reasons that a message has room for"""
Members = Mapping[str, tuple[Technique, ...]]


def explain_standstill(space: Space) -> PerfgenError | None:
    """The refusal of a space in which no techniques can stand together, whatever they need; ``None`` where some can."""
    if stands(space):
        return None
    pins = find_conflicting_pins(space)
    axis, why = explain_blocked_axis(space, pins)
    if not pins:
        return NothingFits(f"nothing can be chosen for {axis} here: {why}", advise(space.case, axis))
    names = [space.case.workload.name_pin(t.axis, t.name) for t in pins]
    if len(names) == 1 and axis == pins[0].axis:
        return UsageError(f"{names[0]} cannot be used here: {why.removeprefix(f'{pins[0].name}: ')}", "drop it")
    hint = "drop it" if len(names) == 1 else "drop one of them"
    if allowed := find_allowable(space):
        hint += f", or --allow {allowed.id}"
    steps = "".join(f"only {link}, which leaves " for link in list_links(space, pins, why))
    if len(names) == 1:
        nothing = f"it leaves {steps}nothing for {axis}" if steps else axis
        return UsageError(f"{names[0]} goes with nothing else that can be used here: {nothing}: {why}", hint)
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    return UsageError(f"{listed} cannot stand together: they leave {steps}nothing for {axis}: {why}", hint)


def advise(case: Case, axis: str) -> str:
    """What to do where nothing but the case itself rules out every member of an axis."""
    if axis != "engine" or not case.model.quantization:
        return "change what these say"
    elsewhere = (
        ", or serve it on CPUs (--hardware cpu)" if case.model.quantization == "gguf" and not case.on_cpu else ""
    )
    return f"give --model the weights that this checkpoint was made from{elsewhere}"


def find_allowable(space: Space) -> Technique | None:
    """A technique that is taken on request only, and with which something stands."""
    case = space.case
    every = (t for axis in space.axes for t in axis.for_mode(case.workload.mode) if t.id in space.obstacles)
    for technique in every:
        asking = replace(case, workload=replace(case.workload, allow=(*case.workload.allow, technique.id)))
        if technique.obstacle(asking) is None and stands(open_space(asking, space.cost)):
            return technique
    return None


def stands(space: Space) -> bool:
    """Whether one open technique of every axis can stand beside the others, on some number of devices."""
    return can_complete(space, {axis: list_placed(space, axis) for axis in space.open})


def list_placed(space: Space, axis: str) -> tuple[Technique, ...]:
    """The open members of an axis that have a way to divide as many devices as the space has."""
    return tuple(t for t in space.open[axis] if t.id not in space.layouts or space.layouts_of((t,)))


def can_complete(space: Space, left: Members) -> bool:
    """Whether there is one of ``left`` for each axis without a conflict; what has least choice is decided first."""
    if not left:
        return True
    axis = min(left, key=lambda name: (len(left[name]), name))
    others = {name: members for name, members in left.items() if name != axis}
    return any(can_complete(space, drop_foes(space, others, (technique,))) for technique in left[axis])


def drop_foes(space: Space, members: Members, chosen: tuple[Technique, ...]) -> Members:
    """What can still be chosen beside ``chosen``."""
    foes = space.list_foes(chosen)
    return {axis: tuple(t for t in listed if t not in foes) for axis, listed in members.items()}


def list_pinned(space: Space) -> tuple[Technique, ...]:
    pins = dict(space.case.workload.pins)
    return tuple(space.open[axis.name][0] for axis in space.axes if axis.name in pins)


def find_conflicting_pins(space: Space) -> tuple[Technique, ...]:
    """The fewest pins that rule everything out: each is left out in turn, and stays out where it changes nothing."""
    kept = list_pinned(space)
    for pinned in kept:
        fewer = tuple(t for t in kept if t is not pinned)
        if not stands(keep_pins(space, fewer)):
            kept = fewer
    return kept


def keep_pins(space: Space, kept: tuple[Technique, ...]) -> Space:
    """The space of the same case with only these pins."""
    workload = replace(space.case.workload, pins=tuple((t.axis, t.name) for t in kept))
    return open_space(replace(space.case, workload=workload), space.cost)


def explain_blocked_axis(space: Space, pins: tuple[Technique, ...]) -> tuple[str, str]:
    """The axis on which ``pins`` leave least, and why each of its members cannot be chosen."""
    part = keep_pins(space, pins)
    left, certain = eliminate(part)
    axis = min((name for name in left), key=lambda name: (len(left[name]), name not in {t.axis for t in pins}))
    if left[axis]:
        return axis, "each of them rules out all members of another axis"
    return axis, explain_exclusions(part, list_members(part, axis), certain)


def eliminate(part: Space) -> tuple[Members, tuple[Technique, ...]]:
    """What can still be chosen by axis, and what must be: what is pinned or there is no other of rules out the rest, and what is then
    left alone rules out more."""
    every = {axis: list_placed(part, axis) for axis in part.open}
    left, certain, more = every, (), tuple(members[0] for members in part.open.values() if len(members) == 1)
    while more and all(left.values()):
        certain += more
        left = drop_foes(part, every, certain)
        more = tuple(members[0] for members in left.values() if len(members) == 1 and members[0] not in certain)
    return left, certain


def list_links(space: Space, pins: tuple[Technique, ...], why: str) -> list[str]:
    """What stands between the pins and the axis that they leave nothing for: each technique that is the last of its axis and that the
    reasons name, with why no other is left, in the order in which they follow from each other."""
    part = keep_pins(space, pins)
    _, certain = eliminate(part)
    links: list[str] = []
    for place, technique in reversed(list(enumerate(certain))):
        others = [t for t in part.open[technique.axis] if t is not technique]
        if others and f"({technique.id})" in " ".join((why, *links)):
            links.insert(0, f"{technique.id} ({explain_exclusions(part, others, certain[:place])})")
    return links


def explain_exclusions(part: Space, members: Sequence[Technique], certain: tuple[Technique, ...]) -> str:
    """Why each cannot be chosen beside what is certain: the first few reasons, those with the same one together."""
    names: dict[str, list[str]] = {}
    for technique in members:
        if why := explain_exclusion(part, technique, certain):
            own = why.startswith(f"{technique.name} ")  # "sdpa would …" and "eager would …" are one reason
            names.setdefault(why.removeprefix(technique.name) if own else f": {why}", []).append(technique.name)
    whys = [f"{' and '.join(named)}{why}" for why, named in names.items()]
    more = f"; and {len(whys) - SHOWN} more" if len(whys) > SHOWN else ""
    return "; ".join(whys[:SHOWN]) + more


def list_members(space: Space, axis: str) -> tuple[Technique, ...]:
    """Those that are open, and, but for a pinned axis, those that an obstacle keeps out: it may be what can be changed."""
    every = next(a for a in space.axes if a.name == axis).for_mode(space.case.workload.mode)
    if axis in dict(space.case.workload.pins):
        return space.open[axis]
    return (*space.open[axis], *(t for t in every if t.id in space.obstacles))


def explain_exclusion(space: Space, technique: Technique, certain: tuple[Technique, ...]) -> str | None:
    """Why a technique cannot be chosen, the conflict with what is certain first."""
    conflicts = ((t, space.conflict(technique, t)) for t in certain if t is not technique)
    against = next((f"{why} ({t.id})" for t, why in conflicts if why), None)
    return space.obstacles.get(technique.id) or against
