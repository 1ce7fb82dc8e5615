"""InfiniBand (Omni-Path among it), RoCE and EFA ports with rate and state, and Ethernet; virtual functions are counted, not listed."""

from __future__ import annotations

import posixpath
import re
from dataclasses import replace

from hwdetect.machine.protocol import Machine
from hwdetect.probes.parsing import parse_integer
from hwdetect.probes.pci import ADDRESS
from hwdetect.types import NetworkPort

RDMA, NET = "sys/class/infiniband", "sys/class/net"
ETHERNET = 1  # ARPHRD_ETHER
MAX_PORTS = 512
MAX_MEGABITS = 10_000_000  # "unknown" is all ones (SPEED_UNKNOWN of linux/ethtool.h), as 32 bits without a sign


def read_network(machine: Machine) -> tuple[NetworkPort, ...]:
    """RDMA ports first, then physical Ethernet that is not one of them."""
    rdma: list[NetworkPort] = []
    behind: dict[str, int] = {}
    for device in machine.list_folder(RDMA)[:MAX_PORTS]:
        parent = _find_physical_function(machine, f"{RDMA}/{device}")
        if parent is not None:
            behind[parent] = behind.get(parent, 0) + 1
            continue
        ports = machine.list_folder(f"{RDMA}/{device}/ports")
        rdma += [_read_rdma_port(machine, device, port) for port in ports]
    counted = tuple(replace(port, virtual_functions=behind.get(port.pci_address or "")) for port in rdma)
    taken = {port.pci_address for port in rdma if port.pci_address}
    return counted + _list_ethernet_ports(machine, taken)


def _find_physical_function(machine: Machine, folder: str) -> str | None:
    """The address of the device that this one is a virtual function of."""
    place = machine.resolve_link(f"{folder}/device/physfn")
    return posixpath.basename(place) if place else None


def _find_address(machine: Machine, folder: str) -> str | None:
    name = posixpath.basename(machine.resolve_link(f"{folder}/device") or "")
    return name if ADDRESS.fullmatch(name) else None


def _read_numa_node(machine: Machine, folder: str) -> int | None:
    node = parse_integer(machine.read(f"{folder}/device/numa_node"))
    return node if node is not None and node >= 0 else None


def _read_rdma_port(machine: Machine, device: str, port: str) -> NetworkPort:
    folder = f"{RDMA}/{device}/ports/{port}"
    layer = (machine.read(f"{folder}/link_layer") or "").strip().lower()
    # "200 Gb/sec (4X HDR)": all lanes together.
    rate = re.match(r"(\d{1,5}(?:\.\d)?)\s*Gb/sec", (machine.read(f"{folder}/rate") or "").strip())
    state = re.match(r"\d+:\s*(\S+)", (machine.read(f"{folder}/state") or "").strip())
    return NetworkPort(
        name=f"{device}/{port}",
        kind=_classify_port(device, layer),
        state=state.group(1).lower() if state else None,
        rate_bytes_per_s=float(rate.group(1)) * 1e9 / 8 if rate else None,
        numa_node=_read_numa_node(machine, f"{RDMA}/{device}"),
        pci_address=_find_address(machine, f"{RDMA}/{device}"),
    )


def _classify_port(device: str, layer: str) -> str:
    # EFA's link layer is "Unspecified": its driver's names tell it.
    if device.startswith(("rdmap", "efa")):
        return "efa"
    return "roce" if layer == "ethernet" else "infiniband"


def _list_ethernet_ports(machine: Machine, taken: set[str]) -> tuple[NetworkPort, ...]:
    """Interfaces with a device behind them: no bridges, tunnels, loopback or virtual functions."""
    ports = []
    for name in machine.list_folder(NET)[:MAX_PORTS]:
        folder = f"{NET}/{name}"
        if parse_integer(machine.read(f"{folder}/type")) != ETHERNET or not machine.list_folder(f"{folder}/device"):
            continue
        address = _find_address(machine, folder)
        # The Ethernet side of a RoCE port is the same cable.
        if address in taken or _find_physical_function(machine, folder):
            continue
        megabits = parse_integer(machine.read(f"{folder}/speed"))  # -1 where the link is down or virtual
        state = (machine.read(f"{folder}/operstate") or "").strip()
        ports.append(
            NetworkPort(
                name=name,
                kind="ethernet",
                state={"up": "active"}.get(state, state) or None,
                rate_bytes_per_s=megabits * 1e6 / 8 if megabits and 0 < megabits < MAX_MEGABITS else None,
                numa_node=_read_numa_node(machine, folder),
                pci_address=address,
            )
        )
    return tuple(ports)
