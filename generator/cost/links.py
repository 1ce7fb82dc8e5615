"""How fast a ring over some devices of a node goes: what collectives are timed with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import combinations

from generator.cost import constants as c
from hwdetect.types import Device, Link

DIRECT = frozenset({"nvlink", "nvswitch", "xgmi", "xelink", "neuronlink", "c2c"})
MANY = 8
"""up to so many devices every choice of some of them is tried; beyond, neighbours"""


@dataclass(frozen=True, slots=True)
class Ring:
    """What joins some devices, whatever board they are. ``direct``: bytes per second of all direct links of the device that has
    least of them, ``None`` where they do not lead from each device to every other; ``paths``: bytes per second and peer access
    of the others, each once."""

    direct: float | None
    paths: frozenset[tuple[float | None, bool | None]]


@cache
def compute_ring_rates(device: Device, links: tuple[Link, ...], count: int) -> tuple[float, ...]:
    """Bytes per second, one direction, by the number of devices used (index), for the best choice of that many."""
    alone = assume_link_rate(device)
    if not links:
        return (alone,)
    best = (max(compute_ring_rate(device, ring) for _, ring in choices) for choices in list_rings(links, count)[2:])
    return (alone, alone, *best)


def choose_devices(device: Device, links: tuple[Link, ...], count: int, used: int) -> tuple[int, ...]:
    """Which devices to take: the ones whose slowest connection is fastest, the first such."""
    if not links or used in (1, count):
        return tuple(range(used))
    rings = list_rings(links, count)[used]
    return max(rings, key=lambda one: (compute_ring_rate(device, one[1]), tuple(-x for x in one[0])))[0]


@lru_cache(maxsize=16)
def list_rings(links: tuple[Link, ...], count: int) -> list[list[tuple[tuple[int, ...], Ring]]]:
    """By the number of devices used (index): the choices of so many, each with what joins them."""
    if count > MANY:
        grown = [list(grow_ring(links, range(first, count))) for first in range(count)]
        windows = [
            [(tuple(range(n, n + used)), grown[n][used - 1]) for n in range(count - used + 1)]
            for used in range(1, count + 1)
        ]
        return [[], *windows]
    return [
        [(chosen, list(grow_ring(links, chosen))[-1]) for chosen in combinations(range(count), used)] if used else []
        for used in range(count + 1)
    ]


def grow_ring(links: tuple[Link, ...], order: Iterable[int]) -> Iterator[Ring]:
    """What joins the first device of ``order``, the first two, three, …: a node of 72 has 2556 links, and as many windows."""
    sums: dict[int, float] = {}
    groups: dict[int, set[int]] = {}
    paths: set[tuple[float | None, bool | None]] = set()
    ends = index_links(links)
    for place in order:
        sums[place], groups[place] = 0.0, {place}
        for other, link in ends.get(place, ()):
            if other not in sums:
                continue
            if link.kind not in DIRECT:
                paths.add((link.bandwidth_bytes_per_s, link.p2p))
            elif link.bandwidth_bytes_per_s:
                sums[place] += link.bandwidth_bytes_per_s
                sums[other] += link.bandwidth_bytes_per_s
                join_groups(groups, place, other)
        joined = len(sums) > 1 and len(groups[place]) == len(sums)
        yield Ring(min(sums.values()) if joined else None, frozenset(paths))


@lru_cache(maxsize=16)
def index_links(links: tuple[Link, ...]) -> Mapping[int, list[tuple[int, Link]]]:
    """By device: its links, each with the device at the other end."""
    ends: dict[int, list[tuple[int, Link]]] = {}
    for link in links:
        ends.setdefault(link.a, []).append((link.b, link))
        ends.setdefault(link.b, []).append((link.a, link))
    return ends


def join_groups(groups: dict[int, set[int]], one: int, other: int) -> None:
    """Whoever one of them reaches, the other reaches too."""
    if groups[one] is not groups[other]:
        groups[one] |= groups[other]
        groups.update(dict.fromkeys(groups[one], groups[one]))


def compute_ring_rate(device: Device, ring: Ring) -> float:
    """Direct links add up where they join all of them (rings run over all links at once); otherwise the slowest PCIe path."""
    if ring.direct is not None:
        return min(device.link_bytes_per_s or float("inf"), ring.direct)
    rates = [compute_pcie_link_rate(device, rate, peer) for rate, peer in ring.paths]
    return min(rates, default=assume_link_rate(device))


def compute_pcie_link_rate(device: Device, bytes_per_s: float | None, peer: bool | None) -> float:
    peer = device.p2p if peer is None else peer
    return (bytes_per_s or compute_pcie_rate(device)) * (c.PEER_SHARE if peer else c.THROUGH_HOST_SHARE)


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
