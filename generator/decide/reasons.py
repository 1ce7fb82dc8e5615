"""Why each technique: what the same cost model says of the best plan without it, whatever else must change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

from generator.cost.estimate import Estimate
from generator.decide.candidates import FULL_SHARE, LARGER_IS_FASTER, PLAINNESS, Candidate, cost_members, rate_fullness
from generator.decide.device_count import MARGINAL_EFFICIENCY, RESORT_GAIN, wants_time
from generator.decide.nearest import find_nearest
from generator.decide.search import find_best
from generator.decide.shortfall import describe_shortfall
from generator.decide.space import Space
from generator.techniques.base import Axis, Technique

NOT_EMITTED = "no project is made of it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """An alternative that was not taken. ``rival`` is the best plan with it (``fits``), or the one that comes nearest to fitting;
    ``None`` where it cannot be used at all. ``changes`` says what else differs between the rival and the choice; ``short``, by
    how much the nearest plan is too large that risks no more than the choice."""

    name: str
    why: str
    rival: Candidate | None = None
    fits: bool = False
    changes: tuple[str, ...] = ()
    short: str = ""

    @property
    def cost(self) -> Estimate | None:
        return self.rival.estimate if self.rival else None


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

    @property
    def is_open(self) -> bool:
        """Whether there was a choice: another technique that this machine and this work do not rule out."""
        return any(r.rival is not None for r in self.rejected)


def explain_decisions(space: Space, best: Candidate) -> tuple[Decision, ...]:
    """Every axis of the plan ``best``."""
    seeds = [best]  # a plan found for one alternative is a start for the next
    return tuple(explain_axis(space, axis, best, seeds) for axis in space.axes)


def explain_axis(space: Space, axis: Axis, best: Candidate, seeds: list[Candidate]) -> Decision:
    chosen = next(t for t in best.members if t.axis == axis.name)
    others = [t for t in axis.for_mode(space.case.workload.mode) if t is not chosen]
    rejected = tuple(explain_alternative(space, best, other, seeds) for other in others)
    return Decision(
        axis=axis.name,
        chosen=chosen.name,
        why=explain_choice(space, axis, best, chosen, rejected),
        quality_note=chosen.quality_note if chosen.quality else "",
        evidence=chosen.evidence,
        basis=best.estimate.basis,
        rejected=rejected,
    )


def explain_alternative(space: Space, best: Candidate, other: Technique, seeds: list[Candidate]) -> Rejected:
    """What the best plan with ``other`` in it would cost, or by how much even the nearest is too large."""
    if other.id in space.obstacles:
        return Rejected(name=other.name, why=space.obstacles[other.id])
    part = space.narrowed({other.axis: (other,)})
    against = next((why for t in best.members if t.axis != other.axis and (why := space.conflict(other, t))), "")
    rival = find_rival(part, best, [*seeds, *swap_member(part, best, other)])
    if rival is None:
        return explain_misfit(part, best, other, against)
    seeds.append(rival)
    changes = list_changes(best, rival, other.axis)
    risks = [t.id for t in list_risks(space, best, rival)]  # named by their --allow
    why = explain_rival(space, best, rival) + note_changes([c for c in changes if c not in risks], against)
    short = explain_risk_taken(part, best, rival, other)
    if short:
        why = f"{short}; fits only with {' and '.join(risks)}: {why}"
    return Rejected(name=other.name, why=why, rival=rival, fits=True, changes=changes, short=short)


def explain_misfit(part: Space, best: Candidate, other: Technique, against: str) -> Rejected:
    """Nothing with ``other`` fits: by how much, or what it has a conflict with."""
    nearest = find_nearest(part)
    if nearest is None:
        return Rejected(name=other.name, why=against or "it goes with nothing else that can be used here")
    changes = list_changes(best, nearest, other.axis)
    short = describe_shortfall(part, nearest)
    why = short + note_changes(changes, against)
    return Rejected(name=other.name, why=why, rival=nearest, changes=changes, short=short)


def find_rival(part: Space, best: Candidate, seeds: list[Candidate]) -> Candidate | None:
    """The best candidate of ``part`` on as many devices as ``best`` or less, so that it is compared at no greater price. On any
    number where none fits on so many, or where the user wants time at any price."""
    used = best.layout.devices
    rival = None if wants_time(part) else find_best(part.limited(most=used), seeds)
    more = part if wants_time(part) else part.limited(least=used + 1)
    return rival or (find_best(more, seeds) if more.list_counts() else None)


def swap_member(part: Space, best: Candidate, other: Technique) -> list[Candidate]:
    """``best`` with ``other`` on its axis, if it can stand beside the rest: a start for a search."""
    swapped = tuple(other if t.axis == other.axis else t for t in best.members)
    if other.id in part.layouts or any(part.conflict(other, t) for t in swapped if t is not other):
        return []
    return cost_members(part, swapped, best.layout)


def list_changes(best: Candidate, rival: Candidate, axis: str = "", *, of_devices: bool = True) -> tuple[str, ...]:
    """What differs between two plans on other axes than ``axis``: techniques, devices (but for ``of_devices``), micro-batch."""
    changed = [t.id for t in rival.members if t.axis != axis and t not in best.members]
    ours, theirs = best.layout, rival.layout
    if of_devices and ours.devices != theirs.devices:
        changed.append(f"{theirs.devices} device{'s' if theirs.devices > 1 else ''} instead of {ours.devices}")
    elif ours != theirs and ours.devices == theirs.devices and divides_as(best, rival):
        changed.append("the devices divided otherwise")
    small, large = rival.execution.micro_batch, best.execution.micro_batch
    return (*changed, f"micro-batch {small} instead of {large}") if small != large else tuple(changed)


def divides_as(best: Candidate, rival: Candidate) -> bool:
    """Whether both take one form, or one strategy: a form without copies has none of its own."""
    forms = [t for t in rival.members if t.axis == "parallelism"]
    return best.layout.strategy == rival.layout.strategy or all(t in best.members for t in forms)


def note_changes(changes: Sequence[str], against: str = "") -> str:
    """The changes in brackets, with what made them necessary."""
    reason = f": {against}" if against else ""
    return f" (with {', '.join(changes)}{reason})" if changes else ""


def explain_risk_taken(part: Space, best: Candidate, rival: Candidate, other: Technique) -> str:
    """Where a rival fits only with more risk to convergence than the plan takes: by how much it is too large without."""
    accepted = max(part.rate_risk(t) for t in (*best.members, other))
    if max(part.rate_risk(t) for t in rival.members) <= accepted:
        return ""
    nearest = find_nearest(part.emitted, accepted)
    return describe_shortfall(part, nearest) if nearest and not nearest.fits else ""


def list_risks(space: Space, best: Candidate, rival: Candidate) -> list[Technique]:
    """What the rival risks and the plan does not."""
    return [t for t in rival.members if space.rate_risk(t) and t not in best.members]


def explain_planned(space: Space, rival: Candidate) -> str:
    """Why it is priced and not emitted."""
    return next(why for t in rival.members if (why := t.explain_unemitted(space.case)))


def explain_rival(space: Space, best: Candidate, rival: Candidate) -> str:
    """What the rival costs, and where it is faster, why it is not the plan."""
    theirs, ours = rival.estimate.step_seconds, best.estimate.step_seconds
    speed = compare_seconds(theirs, ours)
    memory = f"{speed}, {format_signed(rival.estimate.peak_memory_gib - best.estimate.peak_memory_gib)} GiB"
    risks = format_risks(list_risks(space, best, rival))
    planned = f"; {NOT_EMITTED}: {explain_planned(space, rival)}" if rival.planned else ""
    if risks or planned or theirs >= ours:
        return memory + risks + planned
    if rival.standing > best.standing:  # however much its devices would do
        return f"{memory}: a last resort, taken where nothing else fits or it is {RESORT_GAIN:g} times as fast"
    if rival.layout.devices > best.layout.devices:
        return f"{memory}, but the added devices would do less than {MARGINAL_EFFICIENCY:.0%} of their share"
    return speed + explain_slower_choice(space, best, rival)


def format_risks(risks: list[Technique]) -> str:
    notes, options = " and ".join(t.quality_note for t in risks), " ".join(f"--allow {t.id}" for t in risks)
    return f", but {notes}: only when allowed ({options})" if risks else ""


def explain_slower_choice(space: Space, best: Candidate, rival: Candidate) -> str:
    """Why a plan that takes less time per step is ranked lower."""
    case = space.case
    once = sum(t.once_seconds(case) for t in rival.members) - sum(t.once_seconds(case) for t in best.members)
    # of a run without a known end, what is paid once was not counted
    if once > 0 and (steps := case.workload.steps):
        return f" per step, but costs {once:.0f} s once, which {steps} steps do not earn back"
    if count_settings(rival) > count_settings(best):
        return ": not worth another setting"
    told_apart = [sum(t.least_gain(case) for t in candidate.members) for candidate in (rival, best)]
    if told_apart[0] > told_apart[1]:
        return f", and predictions do not tell apart what is nearer than {told_apart[0]:.0%}"
    theirs, ours = (rate_fullness(space, c.execution, c.peak_gib) for c in (rival, best))
    if theirs > ours:
        if theirs > 1 + PLAINNESS:
            return ": not worth a memory that one in ten published runs of its kind would not have fitted in"
        return f": not worth a device filled beyond {FULL_SHARE:.0%}"
    return f", but in smaller passes, and published runs say otherwise: {LARGER_IS_FASTER}"


def count_settings(candidate: Candidate) -> int:
    """What its techniques add to the project beside the plain ones."""
    return sum(t.adds for t in candidate.members if not t.baseline)


def compare_seconds(theirs: float, ours: float) -> str:
    """How ``theirs`` compares with ``ours``, in words."""
    if ours <= 0:
        return "not timed"
    ratio = theirs / ours
    if ratio >= 2:
        return f"{ratio:.1f} times the time"
    if ratio <= 0.5:
        return f"{1 / ratio:.1f} times as fast"
    if abs(ratio - 1) < 0.005:
        return "as fast"
    return f"{ratio - 1:.0%} slower" if ratio > 1 else f"{1 / ratio - 1:.0%} faster"


def format_signed(gib: float) -> str:
    return f"{gib:+.1f}" if abs(gib) >= 0.05 else "±0.0"


def is_as_good(rival: Estimate, best: Estimate) -> bool:
    """Within 1 % of time and of memory."""
    times = rival.step_seconds, best.step_seconds
    memory = rival.peak_memory_gib, best.peak_memory_gib
    return all(max(pair) <= AS_GOOD * min(pair) for pair in (times, memory))


AS_GOOD = 1.01


def explain_choice(space: Space, axis: Axis, best: Candidate, chosen: Technique, rejected: tuple[Rejected, ...]) -> str:
    """Why ``chosen``: the best plan without it, or by how much nothing fits without it."""
    workload = space.case.workload
    if (chosen.axis, chosen.name) in workload.pins:
        option = workload.name_pin(chosen.axis, chosen.name)
        return "you pinned it" if option.startswith("--pin") else f"you asked for {option}"
    if chosen.axis == "trained":
        return f"you asked for --train {workload.train}"
    fitting = [(r.rival.key, r) for r in rejected if r.rival and r.fits]
    short = [(r.rival.estimate.fullness, r) for r in rejected if r.rival and not r.fits]
    if fitting:
        # a rival that a person would not tell from the choice is no reason for it, unless there is no other
        worse = [(key, r) for key, r in fitting if r.rival and not is_as_good(r.rival.estimate, best.estimate)]
        _, next_best = min(worse or fitting, key=itemgetter(0))
        plain = next((r for r in rejected if r.name == axis.baseline(workload.mode).name), next_best)
        if plain.short and plain is not next_best:  # what speaks against the plain technique is the reason
            return f"{plain.name} does not fit: {plain.short}; next best, {next_best.name}: {next_best.why}"
        return f"without it ({next_best.name}): {next_best.why}"
    if short:
        _, nearest = min(short, key=itemgetter(0))
        return f"without it nothing fits; the nearest, {nearest.name}: {nearest.why}"
    if not rejected:
        return "there is no other"
    return f"no other can be used ({rejected[0].name}: {rejected[0].why})"
