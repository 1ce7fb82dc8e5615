"""A decided case: the choice, what it costs, what else was possible."""

from __future__ import annotations

from dataclasses import dataclass, replace

from generator.case.case import Case
from generator.case.sources import Work
from generator.cost import CostModel
from generator.decide.candidates import Candidate, cost_members
from generator.decide.reasons import Decision, explain_axis
from generator.decide.search import search_space
from generator.decide.shortfall import explain_shortfall
from generator.decide.space import Space, open_space
from generator.techniques.base import Technique
from generator.techniques.edits import Edits, merge_edits

RUNNERS_UP = 5
SHOWN_LAYOUTS = 12


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
    written: tuple[tuple[Technique, Edits], ...]
    """by member: what it writes"""
    edits: Edits
    serving: Plan | None = None
    """for a training plan: how infer.py uses the result on the same machine"""

    @property
    def unemitted(self) -> tuple[Technique, ...]:
        """What was chosen because only it fits, or because it was pinned, and no project can be made of yet."""
        return tuple(t for t in self.best.members if not t.emitted)


def decide(case: Case, cost: CostModel) -> Plan:
    """Choose, and explain. Raises ``NothingFits`` with the shortfall when no configuration fits."""
    room = open_space(case, cost)
    ranked = search_space(room)
    if not ranked:
        raise explain_shortfall(room)
    best = ranked[0]
    written = tuple((t, t.edits(replace(case, layout=best.layout))) for t in best.members)
    return Plan(
        case=case,
        best=best,
        decisions=tuple(explain_axis(room, axis, ranked) for axis in room.axes),
        runners_up=tuple(keep_distinct(ranked[1:], best)[:RUNNERS_UP]),
        splits=tuple(cost_members(room, best.members, best.layout)),
        layouts=cost_other_layouts(room, best),
        written=written,
        edits=merge_edits([(technique.id, edits) for technique, edits in written]),
    )


def cost_other_layouts(room: Space, best: Candidate) -> tuple[Candidate, ...]:
    found = []
    for layout in room.layouts_of(best.members):
        fitting = [c for c in cost_members(room, best.members, layout) if c.fits]
        if layout != best.layout and fitting:
            found.append(min(fitting, key=lambda c: c.key))
    return tuple(sorted(found, key=lambda c: c.key)[:SHOWN_LAYOUTS])


def keep_distinct(ranked: list[Candidate], best: Candidate) -> list[Candidate]:
    """One candidate for each set of techniques: the best batch split of each."""
    seen, out = {tuple(best.choice.items())}, []
    for candidate in ranked:
        key = tuple(candidate.choice.items())
        if key not in seen:
            seen.add(key)
            out.append(candidate)
    return out


def add_serving(plan: Plan, serving: Plan | None) -> Plan:
    return replace(plan, serving=serving)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan, the work whose outside values its project reads from config.yaml, and what a reader must know."""

    work: Work
    plan: Plan
    notes: tuple[str, ...] = ()
