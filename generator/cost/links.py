"""How fast a ring over some devices of a node goes: what collectives are timed with."""

from __future__ import annotations

from functools import cache
from itertools import combinations

from hwdetect.types import Device, Link

PCIE_LANE_BYTES_PER_S = {3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""one direction, after line coding (PCI-SIG)"""
DIRECT = frozenset({"nvlink", "nvswitch", "xgmi", "xelink", "c2c"})
PEER, THROUGH_HOST = 0.8, 0.4
"""share of a PCIe link that a transfer between two devices reaches: with peer access (protocol overhead, NVIDIA p2pBandwidthLatencyTest
on A100 PCIe: 25 of 31.5 GB/s), and without, where every byte crosses the host's memory"""
UNKNOWN_BYTES_PER_S = 12e9
"""PCIe 3.0 x16 with peer access: what is assumed of a board of which nothing is known"""
MANY = 8
"""up to so many devices every choice of some of them is tried; beyond, neighbours"""


@cache
def ring_rates(device: Device, links: tuple[Link, ...], count: int) -> tuple[float, ...]:
    """Bytes per second, one direction, by the number of devices used (index), for the best choice of that many."""
    alone = without_links(device)
    if not links:
        return (alone,)
    return (
        alone,
        alone,
        *(max(rate_of(device, links, used) for used in choices(count, n)) for n in range(2, count + 1)),
    )


def best_choice(device: Device, links: tuple[Link, ...], count: int, used: int) -> tuple[int, ...]:
    """Which devices to take: the ones whose slowest connection is fastest, the first such."""
    if not links or used in (1, count):
        return tuple(range(used))
    return max(choices(count, used), key=lambda chosen: (rate_of(device, links, chosen), tuple(-x for x in chosen)))


def choices(count: int, used: int):
    if count <= MANY:
        return combinations(range(count), used)
    return (tuple(range(first, first + used)) for first in range(count - used + 1))


@cache
def rate_of(device: Device, links: tuple[Link, ...], chosen: tuple[int, ...]) -> float:
    """Direct links add up where they join all of them (rings run over all links at once); otherwise the slowest PCIe path."""
    inside = [x for x in links if x.a in chosen and x.b in chosen]
    direct = [x for x in inside if x.kind in DIRECT and x.bandwidth_bytes_per_s]
    if direct and connected(direct, chosen):
        most = device.link_bytes_per_s or float("inf")
        sums = (sum(x.bandwidth_bytes_per_s or 0.0 for x in direct if place in (x.a, x.b)) for place in chosen)
        return min(most, *sums)
    rates = [pcie_rate(device, x) for x in inside if x.kind not in DIRECT]
    return min(rates, default=without_links(device))


def connected(direct: list[Link], chosen: tuple[int, ...]) -> bool:
    reached, waiting = set(), [chosen[0]]
    while waiting:
        place = waiting.pop()
        if place not in reached:
            reached.add(place)
            waiting += [x.b if x.a == place else x.a for x in direct if place in (x.a, x.b)]
    return reached == set(chosen)


def pcie_rate(device: Device, link: Link) -> float:
    peer = device.p2p if link.p2p is None else link.p2p
    whole = link.bandwidth_bytes_per_s or pcie_bytes_per_s(device)
    return whole * (PEER if peer else THROUGH_HOST)


def pcie_bytes_per_s(device: Device) -> float:
    if not device.pcie_generation:
        return UNKNOWN_BYTES_PER_S / PEER
    return (device.pcie_width or 16) * PCIE_LANE_BYTES_PER_S.get(device.pcie_generation, PCIE_LANE_BYTES_PER_S[4])


def without_links(device: Device) -> float:
    """Nothing is known of the node: the board's own links, or PCIe."""
    if device.link_bytes_per_s and not device.link_bridge:
        return device.link_bytes_per_s
    return pcie_bytes_per_s(device) * (PEER if device.p2p else THROUGH_HOST)
