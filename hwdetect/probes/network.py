"""InfiniBand (Omni-Path among it), RoCE and EFA ports with rate and state, and Ethernet; virtual functions are counted, not listed."""

from __future__ import annotations

import posixpath
import re
from dataclasses import replace

from hwdetect.machine import Machine
from hwdetect.probes.pci import ADDRESS
from hwdetect.probes.reading import whole
from hwdetect.types import NetworkPort

RDMA, NET = "sys/class/infiniband", "sys/class/net"
ETHERNET = 1  # ARPHRD_ETHER
MAX_PORTS = 512
MAX_MEGABITS = 10_000_000  # "unknown" is all ones (SPEED_UNKNOWN of linux/ethtool.h), as 32 bits without a sign


def read_network(machine: Machine) -> tuple[NetworkPort, ...]:
    """RDMA ports first, then physical Ethernet that is not one of them."""
    rdma: list[NetworkPort] = []
    behind: dict[str, int] = {}
    for device in machine.listing(RDMA)[:MAX_PORTS]:
        parent = _physical_function(machine, f"{RDMA}/{device}")
        if parent is not None:
            behind[parent] = behind.get(parent, 0) + 1
            continue
        ports = machine.listing(f"{RDMA}/{device}/ports")
        rdma += [_rdma_port(machine, device, port) for port in ports]
    counted = tuple(replace(port, virtual_functions=behind.get(port.pci_address or "")) for port in rdma)
    taken = {port.pci_address for port in rdma if port.pci_address}
    return counted + _ethernet(machine, taken)


def _physical_function(machine: Machine, folder: str) -> str | None:
    """The address of the device that this one is a virtual function of."""
    place = machine.link(f"{folder}/device/physfn")
    return posixpath.basename(place) if place else None


def _address(machine: Machine, folder: str) -> str | None:
    name = posixpath.basename(machine.link(f"{folder}/device") or "")
    return name if ADDRESS.fullmatch(name) else None


def _node(machine: Machine, folder: str) -> int | None:
    node = whole(machine.read(f"{folder}/device/numa_node"))
    return node if node is not None and node >= 0 else None


def _rdma_port(machine: Machine, device: str, port: str) -> NetworkPort:
    folder = f"{RDMA}/{device}/ports/{port}"
    layer = (machine.read(f"{folder}/link_layer") or "").strip().lower()
    rate = re.match(r"(\d{1,5}(?:\.\d)?)\s*Gb/sec", (machine.read(f"{folder}/rate") or "").strip())
    state = re.match(r"\d+:\s*(\S+)", (machine.read(f"{folder}/state") or "").strip())
    return NetworkPort(
        name=f"{device}/{port}",
        kind=_kind(device, layer),
        state=state.group(1).lower() if state else None,
        rate_bytes_per_s=float(rate.group(1)) * 1e9 / 8 if rate else None,
        numa_node=_node(machine, f"{RDMA}/{device}"),
        pci_address=_address(machine, f"{RDMA}/{device}"),
    )


def _kind(device: str, layer: str) -> str:
    if device.startswith(("rdmap", "efa")):
        return "efa"
    return "roce" if layer == "ethernet" else "infiniband"


def _ethernet(machine: Machine, taken: set[str]) -> tuple[NetworkPort, ...]:
    """Interfaces with a device behind them: no bridges, tunnels, loopback or virtual functions."""
    found = []
    for name in machine.listing(NET)[:MAX_PORTS]:
        folder = f"{NET}/{name}"
        if whole(machine.read(f"{folder}/type")) != ETHERNET or not machine.listing(f"{folder}/device"):
            continue
        address = _address(machine, folder)
        if address in taken or _physical_function(machine, folder):
            continue
        megabits = whole(machine.read(f"{folder}/speed"))  # -1 where the link is down or virtual
        state = (machine.read(f"{folder}/operstate") or "").strip()
        found.append(
            NetworkPort(
                name=name,
                kind="ethernet",
                state={"up": "active"}.get(state, state) or None,
                rate_bytes_per_s=megabits * 1e6 / 8 if megabits and 0 < megabits < MAX_MEGABITS else None,
                numa_node=_node(machine, folder),
                pci_address=address,
            )
        )
    return tuple(found)
