"""A figure of a machine that others use too: from rounds of several visits, seconds apart, without the disturbed ones.

The rounds of one visit say what the machine does in that second. What a neighbour of a virtual machine takes of its memory bus, or
another guest of its disk, comes and goes more slowly: only visits that lie apart differ by it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median, median_low

from hwdetect.measure.load import watch_load
from hwdetect.types import NOT_USED, SAME_RATE

VISITS = 3
"""at the start, in the middle and at the end of all that is timed"""
LEAST_VISITS = 2
"""that nobody disturbed: one alone does not say whether it would be so again"""
PAUSE_SECONDS = 2.0
"""between visits where nothing else is timed"""
LEAST_ROUNDS = 3
MOST_SECONDS = 3.0
"""of a visit, after which it is said how far its rounds are apart"""


@dataclass(frozen=True, slots=True)
class Figure:
    """The middle of the visits and their ``spread``; ``None`` where others were busy. ``doubt``: what to tell of it, if anything."""

    value: float | None
    spread: float | None = None
    doubt: str | None = None


@dataclass(slots=True)
class Visit:
    """Of each figure, by name, its rates in the rounds that nobody disturbed; ``busy`` says what disturbed the last of the others."""

    rates: dict[str, list[float]] = field(default_factory=dict)
    busy: str | None = None

    def add(self, taken: dict[str, float]) -> None:
        for name, rate in taken.items():
            self.rates.setdefault(name, []).append(rate)

    def is_stable(self) -> bool:
        rounds = min(map(len, self.rates.values()), default=0)
        return rounds >= LEAST_ROUNDS and all(compute_spread(rates) <= SAME_RATE for rates in self.rates.values())

    def is_disturbed(self, name: str) -> bool:
        return len(self.rates.get(name, ())) < (LEAST_ROUNDS if self.busy else 1)


def take_visit(measure: Callable[[], dict[str, float]], most_seconds: float = MOST_SECONDS) -> Visit:
    """``measure`` again and again: until ``LEAST_ROUNDS`` agree, or the time is over. Each call must take a tenth of a second or more:
    the kernel counts what others compute in hundredths."""
    visit = Visit()
    ends = time.perf_counter() + most_seconds
    while not visit.is_stable():
        with watch_load() as load:
            taken = measure()
        why = load.describe()
        if why is None:
            visit.add(taken)
        else:
            visit.busy = why
        if time.perf_counter() > ends:
            break
    return visit


def take_visits(measure: Callable[[], dict[str, float]], most_seconds: float = MOST_SECONDS) -> tuple[Visit, ...]:
    """``VISITS`` of them, with nothing but time between."""
    visits = []
    for number in range(VISITS):
        time.sleep(PAUSE_SECONDS if number else 0)
        visits.append(take_visit(measure, most_seconds))
    return tuple(visits)


def join_visits(visits: Sequence[Visit], name: str, unit: str) -> Figure:
    """The lower middle of the visits' medians. Its spread is that of the visits or that within one, whichever is wider."""
    taken = [visit.rates[name] for visit in visits if not visit.is_disturbed(name)]
    busy = next((visit.busy for visit in visits if visit.busy), None)
    if not taken or (busy and len(taken) < min(LEAST_VISITS, len(visits))):
        return Figure(None, doubt=f"{NOT_USED.lstrip()}{busy or 'nothing was timed'}; measure again")
    middles = [median(rates) for rates in taken]
    value = median_low(middles)
    spread = max((max(middles) - min(middles)) / value, *map(compute_spread, taken))
    if spread <= SAME_RATE:
        return Figure(value, round(spread, 3))
    slowest, fastest = (chosen(rate for rates in taken for rate in rates) for chosen in (min, max))
    return Figure(
        value,
        round(spread, 3),
        f"is unsteady: rounds of {len(taken)} visits gave {slowest:.3g} to {fastest:.3g} {unit}, the middle is taken",
    )


def compute_spread(rates: Sequence[float]) -> float:
    """How far apart they are, as a share of their median, without the slowest and the fastest fifth: a single round says little."""
    ordered = sorted(rates)
    spare = len(ordered) // 5
    inner = ordered[spare : len(ordered) - spare]
    return (inner[-1] - inner[0]) / median(ordered)
