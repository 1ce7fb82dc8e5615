"""The runners-up: what a plan with less memory would cost in time."""

from __future__ import annotations

from generator.decide.candidates import Candidate
from generator.decide.search import find_best
from generator.decide.space import Space

RUNNERS_UP = 5
MEMORY_STEP = 0.85
"""Each runner-up needs at most this share of the memory of the one before: a difference that lets something else run beside it."""


def find_frontier(space: Space, best: Candidate) -> tuple[Candidate, ...]:
    """The fastest plans with less and less memory, none on more devices than ``best``, and none riskier or farther a resort."""
    part = keep_standing(space, best).limited(most=best.layout.devices)
    runners: list[Candidate] = []
    last = best
    while len(runners) < RUNNERS_UP:
        part = part.limited(gib=last.estimate.peak_memory_gib * MEMORY_STEP)
        leaner = find_best(part)
        if leaner is None or leaner.standing > best.standing:
            break
        runners.append(leaner)
        last = leaner
    return tuple(runners)


def keep_standing(space: Space, best: Candidate) -> Space:
    """The part of the space without techniques that are riskier, or a farther resort, or less emitted than those of ``best``."""
    planned, risk, resort = best.standing
    kept = {
        axis: tuple(
            t
            for t in members
            if space.rate_risk(t) <= risk
            and space.rate_resort(t) <= resort
            and (planned or t.explain_unemitted(space.case) is None)
        )
        for axis, members in space.open.items()
    }
    return space.narrowed(kept)
