"""A figure of a machine that others use too: taken in rounds, without the disturbed ones, until the others agree."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from hwdetect.measure.load import watch_load
from hwdetect.types import SAME_RATE

LEAST_ROUNDS = 5
MOST_SECONDS = 6.0
"""after which it is said how far the rounds are apart"""


@dataclass(frozen=True, slots=True)
class Figure:
    """The middle of the rounds and their ``spread``; ``None`` where others were busy. ``doubt``: what to tell of it, if anything."""

    value: float | None
    spread: float | None = None
    doubt: str | None = None


@dataclass(slots=True)
class Rounds:
    """Of each figure, by name, its rates in the rounds that nobody disturbed; ``busy`` says what disturbed the last of the others."""

    rates: dict[str, list[float]] = field(default_factory=dict)
    busy: str | None = None

    def count(self) -> int:
        return min(map(len, self.rates.values()), default=0)

    def is_stable(self) -> bool:
        return self.count() >= LEAST_ROUNDS and all(compute_spread(rates) <= SAME_RATE for rates in self.rates.values())

    def judge(self, name: str, unit: str) -> Figure:
        rates = self.rates.get(name, [])
        if self.busy and len(rates) < LEAST_ROUNDS:
            return Figure(None, doubt=f"is not used: {self.busy}; measure again")
        spread = compute_spread(rates)
        doubt = (
            f"is unsteady: {len(rates)} rounds gave {min(rates):.3g} to {max(rates):.3g} {unit}, the middle is taken"
        )
        return Figure(median(rates), round(spread, 3), doubt if spread > SAME_RATE else None)


def take_rounds(measure: Callable[[], dict[str, float]], most_seconds: float = MOST_SECONDS) -> Rounds:
    """``measure`` again and again: until ``LEAST_ROUNDS`` agree, or the time is over. Each call must take a tenth of a second or more:
    the kernel counts what others compute in hundredths."""
    rounds = Rounds()
    ends = time.perf_counter() + most_seconds
    while not rounds.is_stable():
        with watch_load() as load:
            taken = measure()
        why = load.describe()
        if why is None:
            for name, rate in taken.items():
                rounds.rates.setdefault(name, []).append(rate)
        else:
            rounds.busy = why
        if time.perf_counter() > ends:
            break
    return rounds


def compute_spread(rates: Sequence[float]) -> float:
    """How far apart they are, as a share of their median, without the slowest and the fastest fifth: a single round says little."""
    ordered = sorted(rates)
    spare = len(ordered) // 5
    inner = ordered[spare : len(ordered) - spare]
    return (inner[-1] - inner[0]) / median(ordered)
