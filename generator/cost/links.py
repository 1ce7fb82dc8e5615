"""How fast a ring over some devices of a node goes: what collectives are timed with."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import combinations

from generator.cost import constants as c
from hwdetect.types import Device, Link

DIRECT = frozenset({"nvlink", "nvswitch", "xgmi", "xelink", "c2c"})
MANY = 8
"""up to so many devices every choice of some of them is tried; beyond, neighbours"""


@cache
def compute_ring_rates(device: Device, links: tuple[Link, ...], count: int) -> tuple[float, ...]:
    """Bytes per second, one direction, by the number of devices used (index), for the best choice of that many."""
    alone = assume_link_rate(device)
    if not links:
        return (alone,)
    best = (max(compute_ring_rate(device, links, used) for used in list_choices(count, n)) for n in range(2, count + 1))
    return (alone, alone, *best)


def choose_devices(device: Device, links: tuple[Link, ...], count: int, used: int) -> tuple[int, ...]:
    """Which devices to take: the ones whose slowest connection is fastest, the first such."""
    if not links or used in (1, count):
        return tuple(range(used))
    choices = list_choices(count, used)
    return max(choices, key=lambda chosen: (compute_ring_rate(device, links, chosen), tuple(-x for x in chosen)))


def list_choices(count: int, used: int) -> Iterable[tuple[int, ...]]:
    if count <= MANY:
        return combinations(range(count), used)
    return (tuple(range(first, first + used)) for first in range(count - used + 1))


@cache
def compute_ring_rate(device: Device, links: tuple[Link, ...], chosen: tuple[int, ...]) -> float:
    """Direct links add up where they join all of them (rings run over all links at once); otherwise the slowest PCIe path."""
    inside = [x for x in links if x.a in chosen and x.b in chosen]
    direct = [x for x in inside if x.kind in DIRECT and x.bandwidth_bytes_per_s]
    if direct and are_joined(direct, chosen):
        most = device.link_bytes_per_s or float("inf")
        sums = (sum(x.bandwidth_bytes_per_s or 0.0 for x in direct if place in (x.a, x.b)) for place in chosen)
        return min(most, *sums)
    rates = [compute_pcie_link_rate(device, x) for x in inside if x.kind not in DIRECT]
    return min(rates, default=assume_link_rate(device))


def are_joined(direct: list[Link], chosen: tuple[int, ...]) -> bool:
    """Whether direct links lead from each of ``chosen`` to every other."""
    reached, waiting = set(), [chosen[0]]
    while waiting:
        place = waiting.pop()
        if place not in reached:
            reached.add(place)
            waiting += [x.b if x.a == place else x.a for x in direct if place in (x.a, x.b)]
    return reached == set(chosen)


def compute_pcie_link_rate(device: Device, link: Link) -> float:
    peer = device.p2p if link.p2p is None else link.p2p
    rate = link.bandwidth_bytes_per_s or compute_pcie_rate(device)
    return rate * (c.PEER_SHARE if peer else c.THROUGH_HOST_SHARE)


def compute_pcie_rate(device: Device) -> float:
    """Of the board's slot, one direction."""
    if not device.pcie_generation:
        return c.UNKNOWN_LINK_BYTES_PER_S / c.PEER_SHARE
    lane = c.PCIE_LANE_BYTES_PER_S.get(device.pcie_generation, c.PCIE_LANE_BYTES_PER_S[4])
    return (device.pcie_width or 16) * lane


def assume_link_rate(device: Device) -> float:
    """Nothing is known of the node: the board's own links, or PCIe."""
    if device.link_bytes_per_s and not device.link_bridge:
        return device.link_bytes_per_s
    return compute_pcie_rate(device) * (c.PEER_SHARE if device.p2p else c.THROUGH_HOST_SHARE)
