"""Users who wait for their turn: fewer answers at a time can end sooner, all of them."""

from __future__ import annotations

from generator.case.case import Case
from generator.cost.of_case import build_cost_model
from generator.decide.candidates import Candidate
from generator.decide.ladder import list_fewer
from generator.decide.notes import Note
from generator.decide.search import find_best
from generator.decide.space import open_space
from generator.figures import format_figure

GAIN = 1.1
"""Tokens per second over those of all at a time from which on it is said (ours: a tenth is less than estimates are off)."""


def note_waiting(case: Case, best: Candidate) -> tuple[Note, ...]:
    """What serves more tokens per second on as many devices, where all users at a time leave no room for it: an engine that keeps a part
    of the memory to itself, copies that each hold the weights. The number of users is theirs who asked: it is said, and not done."""
    if not case.workload.serves or case.workload.optimize_for == "memory":
        return ()
    option, fastest = "", best
    for _, fewer_users, fewer in list_fewer(case):
        space = open_space(fewer, build_cost_model(fewer))
        fastest_there = find_best(space.limited(least=best.layout.devices, most=best.layout.devices))
        if (
            fastest_there is None
            or fastest_there.standing > best.standing
            or get_rate(fastest_there) <= get_rate(fastest)
        ):
            break
        option, fastest = fewer_users, fastest_there
    if get_rate(fastest) < GAIN * get_rate(best):
        return ()
    other = [t.id for t in fastest.members if t not in best.members]
    how = f" (with {', '.join(other)})" if other else " (the devices divided otherwise)"
    text = (
        f"all {case.workload.concurrency} at a time leave no room for what is faster: with {option} the others wait for their turn, and "
        f"all are answered sooner: {format_figure(get_rate(fastest))} tokens/s in the place of {format_figure(get_rate(best))}{how}"
    )
    return (Note(kind="memory", text=text),)


def get_rate(candidate: Candidate) -> float:
    return candidate.estimate.tokens_per_second
