"""By how much a configuration is too large."""

from __future__ import annotations

from generator.decide.candidates import Candidate
from generator.decide.space import Space


def is_host_short(nearest: Candidate) -> bool:
    """Whether host memory, not the device's, is what it lacks most."""
    estimate = nearest.estimate
    host, limit = sum(part.value for part in estimate.host_memory), estimate.host_limit_gib or 0.0
    return host > limit > 0 and host / limit >= estimate.fullness


def count_scarcest_gib(space: Space, nearest: Candidate) -> tuple[float, float]:
    """Needed and usable GiB, of the host where that is scarcer, else of a device."""
    if is_host_short(nearest):
        return sum(part.value for part in nearest.estimate.host_memory), nearest.estimate.host_limit_gib or 0.0
    return nearest.estimate.peak_memory_gib, space.find_usable_gib(nearest.execution)


def describe_shortfall(space: Space, nearest: Candidate) -> str:
    """By how much a candidate that does not fit is too large."""
    needed, usable = count_scarcest_gib(space, nearest)
    of_host = " of host memory" if is_host_short(nearest) else ""
    return f"{needed:.1f} GiB{of_host} needed, {usable:.1f} usable: {needed - usable:.1f} GiB short"
