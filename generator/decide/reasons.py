"""Why each technique: what the same cost model says of the plan without it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from generator.cost.estimate import Estimate
from generator.decide.candidates import HEADROOM_SHARE, Candidate, cost_members
from generator.decide.search import search_space
from generator.decide.space import Space, rate_risk
from generator.techniques.base import Axis, Technique


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


def explain_axis(room: Space, axis: Axis, ranked: list[Candidate]) -> Decision:
    best = ranked[0]
    chosen = next(t for t in best.members if t.axis == axis.name)
    others = [t for t in axis.for_mode(room.case.workload.mode) if t is not chosen]
    rejected = tuple(cost_counterfactual(room, ranked, chosen, other) for other in others)
    return Decision(
        axis=axis.name,
        chosen=chosen.name,
        why=explain_choice(room, axis, best, chosen, rejected),
        quality_note=chosen.quality_note if chosen.quality else "",
        evidence=chosen.evidence,
        basis=best.estimate.basis,
        rejected=rejected,
    )


def cost_counterfactual(room: Space, ranked: list[Candidate], chosen: Technique, other: Technique) -> Rejected:
    """What the same cost model says of the plan with ``other`` in the place of ``chosen``, all else kept where it can be."""
    told = swapped_or_elsewhere(room, ranked, chosen, other)
    return told if other.emitted or not told.fits else replace(told, why=f"{told.why}; {NOT_EMITTED}")


NOT_EMITTED = "planned, not yet emitted"


def swapped_or_elsewhere(room: Space, ranked: list[Candidate], chosen: Technique, other: Technique) -> Rejected:
    if other.id in room.obstacles:
        return Rejected(name=other.name, why=room.obstacles[other.id])
    best = ranked[0]
    swapped = tuple(other if t is chosen else t for t in best.members)
    against = next((why for t in swapped if t is not other and (why := room.conflict(other, t))), None)
    if against:
        return elsewhere(room, ranked, other, against)
    splits = cost_members(room, swapped)
    fitting = [c for c in splits if c.fits]
    if not fitting:
        nearest = min(splits, key=lambda c: (c.estimate.fullness, c.key))
        return Rejected(name=other.name, why=too_big(nearest), cost=nearest.estimate)
    return costed(room, best, min(fitting, key=lambda c: c.key), other, "")


def elsewhere(room: Space, ranked: list[Candidate], other: Technique, against: str) -> Rejected:
    """``other`` conflicts with the rest of the plan: the best plan that does without what it conflicts with."""
    best = ranked[0]
    rival = next((c for c in ranked if other in c.members), None) or best_with(room, best, other)
    if rival is None:
        return Rejected(name=other.name, why=against)
    changed = ", ".join(f"{a}={n}" for a, n in rival.choice.items() if n != best.choice[a] and a != other.axis)
    return costed(room, best, rival, other, f" (with {changed}: {against})")


MAKES_ROOM = ("parallelism", "offload", "checkpointing")
"""axes that may change too when something else must: what they give up is memory or time only"""


def best_with(room: Space, best: Candidate, other: Technique) -> Candidate | None:
    """The best fitting plan that has ``other``, where only what conflicts with it and what makes room is decided anew."""
    kept = {}
    for chosen in best.members:
        free = chosen.axis in MAKES_ROOM or room.conflict(other, chosen)
        plain = tuple(t for t in room.open[chosen.axis] if rate_risk(t, room.case) == 0 and t.emitted)
        kept[chosen.axis] = plain if free else (chosen,)
    return next(iter(search_space(room.narrowed(kept | {other.axis: (other,)}), kept=1)), None)


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
    risk = rate_risk(other, room.case)
    ours, theirs = best.estimate.step_seconds, rival.estimate.step_seconds
    memory = rival.estimate.peak_memory_gib - best.estimate.peak_memory_gib
    speed = relative(theirs, ours)
    if risk > 0:
        return f"{speed}, {signed(memory)} GiB, but {other.quality_note}: only when allowed (--allow {other.id})"
    once = sum(t.once_seconds(room.case) for t in rival.members) - sum(t.once_seconds(room.case) for t in best.members)
    if theirs < ours and once > 0:
        steps = room.case.workload.steps or room.case.workload.max_steps
        return f"{speed} a step, but costs {once:.0f} s once, which {steps} steps do not earn back"
    if theirs < ours and other.last_resort > best.standing[2]:
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


def explain_choice(room: Space, axis: Axis, best: Candidate, chosen: Technique, rejected: tuple[Rejected, ...]) -> str:
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
