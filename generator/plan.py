"""A decided case: the choice, why, what it costs, and every alternative with what it would have cost."""

from __future__ import annotations

from dataclasses import dataclass, replace

from generator.candidates import (
    HEADROOM_SHARE,
    Candidate,
    Space,
    cost_of,
    fits,
    risk_of,
    space,
)
from generator.cost import CostModel
from generator.cost.estimate import Estimate
from generator.edits import Edits, merge
from generator.errors import NothingFits
from generator.search import search, smallest
from generator.technique import Axis, Technique
from generator.workload import Case

RUNNERS_UP = 5
SHOWN_LAYOUTS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """An alternative that was not taken; ``cost`` where it could be costed, ``fits`` whether it would have run."""

    name: str
    why: str
    cost: Estimate | None = None
    fits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One axis: what was chosen, the counterfactual that says why, and the others."""

    axis: str
    chosen: str
    why: str
    quality_note: str
    evidence: tuple
    basis: str
    rejected: tuple[Rejected, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``runners_up`` differ from the choice in at least one technique or in the batch split."""

    case: Case
    best: Candidate
    decisions: tuple[Decision, ...]
    runners_up: tuple[Candidate, ...]
    splits: tuple[Candidate, ...]
    """the same techniques with every micro-batch, up to the first that does not fit"""
    layouts: tuple[Candidate, ...]
    """the same techniques with the devices divided otherwise, the best split of each that fits"""
    edits: Edits
    serving: Plan | None = None
    """for a training plan: how infer.py uses the result on the same machine"""

    @property
    def unemitted(self) -> tuple[Technique, ...]:
        """What was chosen because only it fits, or because it was pinned, and no project can be made of yet."""
        return tuple(t for t in self.best.members if not t.emitted)


def decide(case: Case, cost: CostModel) -> Plan:
    """Choose, and explain. Raises ``NothingFits`` with the shortfall when no configuration fits."""
    room = space(case, cost)
    ranked = search(room)
    if not ranked:
        raise shortfall(room)
    best = ranked[0]
    return Plan(
        case=case,
        best=best,
        decisions=tuple(explain(room, axis, ranked) for axis in room.axes),
        runners_up=tuple(distinct(ranked[1:], best)[:RUNNERS_UP]),
        splits=tuple(cost_of(room, best.members, best.layout)),
        layouts=other_layouts(room, best),
        edits=merge([(t.id, t.edits(replace(case, layout=best.layout))) for t in best.members]),
    )


def other_layouts(room: Space, best: Candidate) -> tuple[Candidate, ...]:
    found = []
    for layout in room.layouts_of(best.members):
        fitting = [c for c in cost_of(room, best.members, layout) if c.fits]
        if layout != best.layout and fitting:
            found.append(min(fitting, key=lambda c: c.key))
    return tuple(sorted(found, key=lambda c: c.key)[:SHOWN_LAYOUTS])


def distinct(ranked: list[Candidate], best: Candidate) -> list[Candidate]:
    """One candidate for each set of techniques: the best batch split of each."""
    seen, out = {tuple(best.choice.items())}, []
    for candidate in ranked:
        key = tuple(candidate.choice.items())
        if key not in seen:
            seen.add(key)
            out.append(candidate)
    return out


def explain(room: Space, axis: Axis, ranked: list[Candidate]) -> Decision:
    best = ranked[0]
    chosen = next(t for t in best.members if t.axis == axis.name)
    others = [t for t in axis.for_mode(room.case.workload.mode) if t is not chosen]
    rejected = tuple(counterfactual(room, ranked, chosen, other) for other in others)
    return Decision(
        axis=axis.name,
        chosen=chosen.name,
        why=reason(room, axis, best, chosen, rejected),
        quality_note=chosen.quality_note if chosen.quality else "",
        evidence=chosen.evidence,
        basis=best.estimate.basis,
        rejected=rejected,
    )


def counterfactual(room: Space, ranked: list[Candidate], chosen: Technique, other: Technique) -> Rejected:
    """What the same cost model says of the plan with ``other`` in the place of ``chosen``, all else kept where it can be."""
    told = swapped_or_elsewhere(room, ranked, chosen, other)
    return told if other.emitted or not told.fits else replace(told, why=f"{told.why}; {NOT_EMITTED}")


NOT_EMITTED = "planned, not yet emitted"


def swapped_or_elsewhere(room: Space, ranked: list[Candidate], chosen: Technique, other: Technique) -> Rejected:
    if other.id in room.obstacles:
        return Rejected(name=other.name, why=room.obstacles[other.id])
    best = ranked[0]
    swapped = tuple(other if t is chosen else t for t in best.members)
    against = next((why for t in swapped if t is not other and (why := room.clash(other, t))), None)
    if against:
        return elsewhere(room, ranked, other, against)
    splits = cost_of(room, swapped)
    fitting = [c for c in splits if c.fits]
    if not fitting:
        nearest = min(splits, key=lambda c: (c.estimate.fullness, c.key))
        return Rejected(name=other.name, why=too_big(nearest), cost=nearest.estimate)
    return costed(room, best, min(fitting, key=lambda c: c.key), other, "")


def elsewhere(room: Space, ranked: list[Candidate], other: Technique, against: str) -> Rejected:
    """``other`` clashes with the rest of the plan: the best plan that does without what it clashes with."""
    best = ranked[0]
    rival = next((c for c in ranked if other in c.members), None) or best_with(room, best, other)
    if rival is None:
        return Rejected(name=other.name, why=against)
    changed = ", ".join(f"{a}={n}" for a, n in rival.choice.items() if n != best.choice[a] and a != other.axis)
    return costed(room, best, rival, other, f" (with {changed}: {against})")


MAKES_ROOM = ("parallelism", "offload", "checkpointing")
"""axes that may change too when something else must: what they give up is memory or time only"""


def best_with(room: Space, best: Candidate, other: Technique) -> Candidate | None:
    """The best fitting plan that has ``other``, where only what clashes with it and what makes room is decided anew."""
    kept = {}
    for chosen in best.members:
        free = chosen.axis in MAKES_ROOM or room.clash(other, chosen)
        plain = tuple(t for t in room.open[chosen.axis] if risk_of(t, room.case) == 0 and t.emitted)
        kept[chosen.axis] = plain if free else (chosen,)
    return next(iter(search(room.narrowed(kept | {other.axis: (other,)}), kept=1)), None)


def costed(room: Space, best: Candidate, rival: Candidate, other: Technique, proviso: str) -> Rejected:
    return Rejected(
        name=other.name,
        why=compare(room, best, rival, other) + proviso,
        cost=rival.estimate,
        fits=True,
    )


def too_big(candidate: Candidate) -> str:
    estimate = candidate.estimate
    usable = estimate.limit_gib * (1 - HEADROOM_SHARE)
    if estimate.peak_memory_gib > usable:
        return f"{estimate.peak_memory_gib:.1f} GiB needed, {usable:.1f} usable"
    host = sum(part.value for part in estimate.host_memory)
    return f"{host:.1f} GiB of host memory needed, {estimate.host_limit_gib:.1f} usable"


def compare(room: Space, best: Candidate, rival: Candidate, other: Technique) -> str:
    risk = risk_of(other, room.case)
    ours, theirs = best.estimate.step_seconds, rival.estimate.step_seconds
    memory = rival.estimate.peak_memory_gib - best.estimate.peak_memory_gib
    speed = relative(theirs, ours)
    if risk > 0:
        return f"{speed}, {signed(memory)} GiB, but {other.quality_note}: only when allowed (--allow {other.id})"
    once = sum(t.once_seconds(room.case) for t in rival.members) - sum(t.once_seconds(room.case) for t in best.members)
    if theirs < ours and once > 0:
        steps = room.case.workload.steps or room.case.workload.max_steps
        return f"{speed} a step, but costs {once:.0f} s once, which {steps} steps do not earn back"
    if theirs < ours and other.resort > best.standing[2]:
        return f"{speed}, {signed(memory)} GiB: taken only where nothing fits without it"
    if theirs < ours and other.emitted:
        return f"{speed}: not worth another setting"
    return f"{speed}, {signed(memory)} GiB"


def relative(theirs: float, ours: float) -> str:
    if ours <= 0:
        return "not timed"
    ratio = theirs / ours
    if ratio >= 2:
        return f"{ratio:.1f} times the time"
    if abs(ratio - 1) < 0.005:
        return "as fast"
    return f"{abs(ratio - 1):.0%} {'slower' if ratio > 1 else 'faster'}"


def signed(gib: float) -> str:
    return f"{gib:+.1f}" if abs(gib) >= 0.05 else "±0.0"


def reason(room: Space, axis: Axis, best: Candidate, chosen: Technique, rejected: tuple[Rejected, ...]) -> str:
    """Why ``chosen``: what the plan would be without it."""
    if (chosen.axis, chosen.name) in room.case.workload.pins:
        return "you pinned it"
    if chosen.axis == "trained":
        return f"you asked for --train {room.case.workload.train}"
    open_rivals = [r for r in rejected if r.cost is not None]
    if not open_rivals:
        if not rejected:
            return "there is no other"
        return f"no other can be used ({rejected[0].name}: {rejected[0].why})"
    baseline = axis.baseline(room.case.workload.mode)
    without = next((r for r in open_rivals if r.name == baseline.name), None)
    if without and chosen is not baseline:
        return f"without it ({without.name}): {without.why}"
    fastest = min(open_rivals, key=lambda r: (not r.fits, r.cost.step_seconds if r.cost else 0.0))
    return f"next best, {fastest.name}: {fastest.why}"


def shortfall(room: Space) -> NothingFits:
    """Nothing fits: by how much, with everything that saves memory switched on."""
    least = smallest(room)
    if least is None:
        obstacles = "; ".join(f"{name}: {why}" for name, why in sorted(room.obstacles.items()))
        return NothingFits("no combination of techniques is possible here", obstacles)
    case, estimate = room.case, least.estimate
    usable = estimate.limit_gib * (1 - HEADROOM_SHARE)
    missing = estimate.peak_memory_gib - usable
    saved = ", ".join(t.name for t in least.members if not t.baseline)
    what = f"{case.model.name} ({case.workload.train if case.workload.mode == 'train' else 'inference'}, {case.workload.seq_len} tokens)"
    where = f"{least.layout.devices} x {case.device.name}" if least.layout.devices > 1 else case.device.name
    host, limit = sum(part.value for part in estimate.host_memory), estimate.host_limit_gib or 0.0
    if host > limit > 0 and host / limit >= estimate.fullness:
        return NothingFits(
            f"{what} does not fit the memory of the host: the nearest plan ({saved}) needs {host:.1f} GiB of it beside "
            f"{where}, {limit:.1f} GiB are usable, {host - limit:.1f} GiB short"
        )
    return NothingFits(
        f"{what} does not fit {where}: the smallest plan ({saved}) needs {estimate.peak_memory_gib:.1f} GiB, "
        f"{usable:.1f} GiB are usable, {missing:.1f} GiB short"
    )


def with_serving(plan: Plan, serving: Plan | None) -> Plan:
    return replace(plan, serving=serving)


__all__ = ["Decision", "Plan", "Rejected", "decide", "fits", "with_serving"]
