"""The PCI tree of sysfs: what hangs where, how wide its link is, and how far two devices are apart."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hwdetect.machine.protocol import Machine
from hwdetect.probes.parsing import parse_integer
from hwdetect.types import Pcie

DEVICES = "sys/bus/pci/devices"
ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.\d")
# Transfer rate of a lane in GT/s to PCIe generation (PCI-SIG base specification).
GENERATIONS = {"2.5": 1, "5": 2, "5.0": 2, "8": 3, "8.0": 3, "16": 4, "16.0": 4, "32": 5, "32.0": 5, "64": 6, "64.0": 6}


@dataclass(frozen=True, slots=True, kw_only=True)
class PciDevice:
    """``kind`` is the class without programming interface, e.g. 0x0302 (3D controller)."""

    address: str
    vendor: int
    device: int
    kind: int

    @property
    def pci_id(self) -> str:
        return f"{self.vendor:04x}:{self.device:04x}"


def list_pci_devices(machine: Machine, kinds: frozenset[int]) -> tuple[PciDevice, ...]:
    """Devices of those classes, in bus order. A class written ``0xff`` above 8 bits stands for the whole base class."""
    devices = []
    for address in machine.list_folder(DEVICES):
        if not ADDRESS.fullmatch(address):
            continue
        code = parse_integer(machine.read(f"{DEVICES}/{address}/class"))
        if code is None or code >> 8 not in kinds:
            continue
        vendor = parse_integer(machine.read(f"{DEVICES}/{address}/vendor"))
        device = parse_integer(machine.read(f"{DEVICES}/{address}/device"))
        if vendor is not None and device is not None:
            devices.append(PciDevice(address=address, vendor=vendor, device=device, kind=code >> 8))
    return tuple(devices)


def is_readable(machine: Machine) -> bool:
    """Whether the tree can be read at all: if not, that it names no board says nothing (no /sys in some sandboxes)."""
    return bool(machine.list_folder(DEVICES))


def parse_generation(text: str | None) -> int | None:
    """PCIe generation of ``16.0 GT/s PCIe``."""
    match = re.match(r"\s*(\d{1,3}(?:\.\d)?)\s*GT/s", text or "")
    return GENERATIONS.get(match.group(1)) if match else None


def parse_width(text: str | None) -> int | None:
    lanes = parse_integer(text)
    return lanes if lanes and 0 < lanes <= 32 else None  # 255 and 0 are "unknown"


def read_pcie(machine: Machine, address: str) -> Pcie:
    # "current" falls on an idle link to save power, "max" is what board and slot agreed on.
    folder = f"{DEVICES}/{address}"
    return Pcie(
        generation=parse_generation(machine.read(f"{folder}/current_link_speed")),
        generation_max=parse_generation(machine.read(f"{folder}/max_link_speed")),
        width=parse_width(machine.read(f"{folder}/current_link_width")),
        width_max=parse_width(machine.read(f"{folder}/max_link_width")),
    )


def read_numa_node(machine: Machine, address: str) -> int | None:
    node = parse_integer(machine.read(f"{DEVICES}/{address}/numa_node"))
    return node if node is not None and node >= 0 else None


def read_local_cpus(machine: Machine, address: str) -> str | None:
    return (machine.read(f"{DEVICES}/{address}/local_cpulist") or "").strip() or None


def classify_distance(machine: Machine, a: str, b: str) -> str | None:
    """pix, pxb, phb, node or sys between two devices, with the meanings of ``nvidia-smi topo``."""
    places = [machine.resolve_link(f"{DEVICES}/{address}") for address in (a, b)]
    if places[0] is None or places[1] is None:
        return None
    one, other = (place.split("/") for place in places if place is not None)
    common = 0
    while common < min(len(one), len(other)) and one[common] == other[common]:
        common += 1
    if common <= 2:  # sys/devices: different host bridges
        nodes = read_numa_node(machine, a), read_numa_node(machine, b)
        return None if None in nodes else ("node" if nodes[0] == nodes[1] else "sys")
    if common == 3:  # only the host bridge (pci0000:3a) is common
        return "phb"
    # Below one switch: its upstream port is common, a downstream port and the device follow on either side.
    return "pix" if max(len(one), len(other)) - common <= 2 else "pxb"
