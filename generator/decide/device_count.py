"""How many devices a plan uses: more of them must earn their place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from generator.decide.candidates import Candidate
from generator.decide.frontier import find_frontier
from generator.decide.nearest import find_nearest
from generator.decide.search import find_best
from generator.decide.shortfall import describe_shortfall
from generator.decide.space import LAST, Space

MARGINAL_EFFICIENCY = 0.5
"""Added devices must do at least this share of the work per device of those already there: going from n to m devices, the
speed-up must reach 1 + 0.5 (m/n - 1), which is 1.5 for twice as many. Below that, more than half of what an added device costs is
spent on waiting for the others (ours: device-hours are paid for whether they compute or wait). `--optimize-for time` lifts it."""
RESORT_GAIN = 2.0
"""What is a last resort is taken, though something else fits, where a step is at least so many times as fast with it, or costs as many
times less device time and is no slower (ours: more than an estimate of it is off, and a smoke run tells whether it works there). 500
sequences go to 5 of 256 devices, or to 100 pairs that divide each sequence; four boards without links gather a mixture's weights for one
sequence at a time, or one board reads them from the host for four."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCount:
    """The best plan on so many devices, whatever else must change; where none fits, why."""

    count: int
    best: Candidate | None = None
    why_not: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """The best candidate on as many devices as earn their place, in ``space``, and what 1, 2, 4, … devices give. ``resorted_from``: the
    best without the resorts that ``space`` accepts because a step is slow without them."""

    space: Space
    best: Candidate
    counts: tuple[DeviceCount, ...]
    resorted_from: Candidate | None = None


def weigh_devices(space: Space) -> Weighed | None:
    """How many devices a plan uses; ``None`` if nothing fits."""
    plain, each = choose_count(space)
    if plain is None:
        return None
    best, each = resort_for_speed(plain, each)
    part = each.space
    shown = list_shown_counts(part, best)
    by_count = each.best | search_each_count(part, [n for n in shown if n not in each.best])
    return Weighed(
        space=part,
        best=best,
        counts=tuple(describe_count(part, n, by_count[n]) for n in shown),
        resorted_from=plain if part is not space else None,
    )


def choose_candidate(space: Space) -> Candidate | None:
    """The best candidate on as many devices as earn their place; ``None`` if nothing fits."""
    best, each = choose_count(space)
    return resort_for_speed(best, each)[0] if best else None


@dataclass(frozen=True, slots=True)
class EachCount:
    """The best of a space on each number of devices that was asked for."""

    space: Space
    best: dict[int, Candidate | None]

    def list_fitting(self) -> list[Candidate]:
        return [c for c in self.best.values() if c]


def choose_count(space: Space) -> tuple[Candidate | None, EachCount]:
    """The best candidate, ``None`` if nothing fits."""
    if wants_time(space):
        return find_best(space), EachCount(space, {})
    each = EachCount(space, search_each_count(space, space.list_counts()))
    return choose_within(space, each.list_fitting()), each


def resort_for_speed(best: Candidate, each: EachCount) -> tuple[Candidate, EachCount]:
    """The best where farther resorts are accepted, if a step is so much faster with them (RESORT_GAIN), on devices that are idle without
    them or on those that are not; else ``best``."""
    workload = each.space.case.workload
    if workload.mode == "infer" or workload.optimize_for == "memory":
        return best, each
    while accepted := find_worthy_resort(best, each):
        part = each.space.accepting(accepted)
        chosen, chosen_of = choose_count(part)
        if chosen is None or not is_worth_resort(best, chosen):  # its devices may not earn their place
            chosen = find_best(part.limited(most=best.layout.devices))
        if chosen is None or not is_worth_resort(best, chosen):
            break
        best, each = chosen, chosen_of
    return best, each


def find_worthy_resort(best: Candidate, each: EachCount) -> int:
    """The farthest resort that a much faster step takes, beyond those that are accepted; 0 if there is none."""
    space, used = each.space, best.layout.devices
    if not any(space.rate_resort(t) for members in space.open.values() for t in members):
        return 0
    anyhow, rest = space.accepting(LAST), []
    if used < space.case.devices:
        rest = [find_best(anyhow.limited(least=used + 1)), *(c for count, c in each.best.items() if count > used)]
    others = [c for c in (find_best(anyhow.limited(most=used)), *rest) if c and risks_as_little(c, best)]
    farthest = max((find_resort(space, c) for c in others if speed_up(best, c) >= RESORT_GAIN), default=0)
    return farthest if farthest > max(space.accepted, best.resort) else 0


def find_resort(space: Space, candidate: Candidate) -> int:
    """How far a resort it is, whatever is accepted."""
    return max(t.rate_resort(space.case) for t in candidate.members)


def risks_as_little(candidate: Candidate, best: Candidate) -> bool:
    """Whether it can be emitted as ``best`` can, and risks no more."""
    return candidate.standing[:2] <= best.standing[:2]


def is_worth_resort(best: Candidate, farther: Candidate) -> bool:
    """Whether it is so much faster, or as much cheaper and no slower."""
    gain = speed_up(best, farther)
    fewer = max(1.0, best.layout.devices / farther.layout.devices)
    return risks_as_little(farther, best) and gain >= 1 and gain * fewer >= RESORT_GAIN


AT_ANY_PRICE = ("time", "latency", "throughput")
"""Goals for which every device is used that makes it faster."""


def wants_time(space: Space) -> bool:
    """Whether the user asked for time at any price."""
    return space.case.workload.optimize_for in AT_ANY_PRICE


def choose_within(space: Space, fitting: Sequence[Candidate]) -> Candidate | None:
    """Of the best candidates on each number of devices, the one that the goal asks for, of those that answer soon enough; where none
    does, the soonest."""
    limit = space.case.workload.max_latency
    soon = [c for c in fitting if limit is not None and c.estimate.step_seconds <= limit]
    if limit is not None and not soon:
        return min(fitting, key=lambda c: (c.standing, c.estimate.step_seconds), default=None)
    if space.case.workload.optimize_for == "memory":
        return choose_least_memory(space, soon or fitting)
    if soon:
        return min(soon, key=lambda c: (c.standing, c.layout.devices))
    return choose_earned(fitting)


def choose_least_memory(space: Space, fitting: Sequence[Candidate]) -> Candidate | None:
    """What needs the least of all devices together, at no more risk than the best: of each number of devices, its leanest."""
    if not fitting:
        return None
    least = min(c.standing for c in fitting)
    limit = space.case.workload.max_latency
    every = [c for c in fitting if c.standing == least]
    for best in tuple(every):
        leaner = find_frontier(space.limited(least=best.layout.devices, most=best.layout.devices), best)
        every += [c for c in leaner if c.standing == least and (limit is None or c.estimate.step_seconds <= limit)]
    return min(every, key=lambda c: (c.peak_gib * c.layout.devices, c.key))


def search_each_count(space: Space, counts: Iterable[int]) -> dict[int, Candidate | None]:
    """The best candidate on each of these numbers of devices."""
    return {count: find_best(space.limited(least=count, most=count)) for count in counts}


def choose_earned(fitting: Sequence[Candidate]) -> Candidate | None:
    """Of the best candidates on each number of devices, the one with the most that earn their place.

    Devices come before resorts and risks: only what is planned, risked or resorted to as little as anywhere is compared.
    """
    if not fitting:
        return None
    least = min(c.standing for c in fitting)
    earned: list[Candidate] = []
    for candidate in sorted((c for c in fitting if c.standing == least), key=lambda c: c.layout.devices):
        # against all within the last doubling, so that many small steps do not pass where one large step would not
        rivals = [c for c in earned if 2 * c.layout.devices >= candidate.layout.devices] or earned[-1:]
        if all(earns_place(fewer, candidate) for fewer in rivals):
            earned.append(candidate)
    return earned[-1]


def earns_place(fewer: Candidate, more: Candidate) -> bool:
    """Whether the devices that ``more`` has and ``fewer`` has not are worth it."""
    return speed_up(fewer, more) >= 1 + MARGINAL_EFFICIENCY * (more.layout.devices / fewer.layout.devices - 1)


def speed_up(fewer: Candidate, more: Candidate) -> float:
    return fewer.estimate.step_seconds / more.estimate.step_seconds


def list_shown_counts(space: Space, chosen: Candidate) -> list[int]:
    """1, 2, 4, … up to all devices of the case; all of them; and what was chosen. Processes on CPUs are as many as were asked for."""
    every = space.case.devices
    if space.case.on_cpu:
        return sorted({1, every})
    powers = {1 << k for k in range(every.bit_length())}
    return sorted({*(n for n in powers if n <= every), every, chosen.layout.devices})


def describe_count(space: Space, count: int, best: Candidate | None) -> DeviceCount:
    if best:
        return DeviceCount(count=count, best=best)
    part = space.limited(least=count, most=count)
    nearest = find_nearest(part)
    if nearest is None:
        return DeviceCount(count=count, why_not=f"nothing divides the work over {count}")
    return DeviceCount(count=count, why_not=describe_shortfall(part, nearest))
