"""NVIDIA boards from the best source that answers: NVML, then nvidia-smi, then the driver's files and the PCI tree."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import replace

from hwdetect.machine import Machine
from hwdetect.nvml_child import Apart, Told
from hwdetect.probes import pci
from hwdetect.probes.found import NOTHING, Found, numbered, usable
from hwdetect.probes.nvidia_smi import read_nvidia_smi
from hwdetect.probes.nvml import Reading, read_nvml
from hwdetect.probes.reading import Notes, merged, pairs, squeeze
from hwdetect.types import Board, Link, Software

# Of 5 for everything. Most of it: nvidia-smi asks the same library, so what hangs here will hang there.
NVML_SECONDS = 2.7
GPUS = "proc/driver/nvidia/gpus"
DISPLAY = frozenset({0x0300, 0x0302})
VENDOR = 0x10DE


def read_nvidia(machine: Machine, notes: Notes) -> Found:
    listed = tuple(d for d in pci.pci_devices(machine, DISPLAY) if d.vendor == VENDOR)
    found = _from_nvml(machine, notes)
    if not found.boards:
        by_tool = read_nvidia_smi(machine, notes)
        found = by_tool if by_tool.boards else replace(by_tool, software=found.software)
    if not found.boards:
        from_files = _from_files(machine, listed, notes)
        found = replace(from_files, software=merged(found.software, from_files.software))
    if not found.boards:
        found = replace(found, boards=_jetson(machine))
    return _with_distances(machine, _with_addresses(found, listed))


def within(seconds: float, work: Callable[[], object]) -> tuple[bool, object]:
    """Whether the work ended in time, and its value. Work that hangs is left behind in its thread."""
    box: list[object] = []
    thread = threading.Thread(target=lambda: box.append(work()), daemon=True)
    thread.start()
    thread.join(seconds)
    return bool(box), box[0] if box else None


def _from_nvml(machine: Machine, notes: Notes) -> Found:
    module = machine.nvml()
    if isinstance(module, str):
        notes.add("boards", "NVML", module)
        return NOTHING
    told = module.read(NVML_SECONDS) if isinstance(module, Apart) else _in_a_thread(machine, module)
    for note in told.notes:
        notes.add(note.field, note.who, note.why)
    if told.problem is None:
        return told.found or NOTHING
    notes.add("boards", "NVML", f"{told.problem}; {len(told.boards)} boards read")
    good = {b.index for b in told.boards if usable(b)}
    accelerators = tuple(a for a in told.accelerators if a.board in good)
    return Found(
        boards=tuple(told.boards), accelerators=numbered(accelerators) if accelerators else None, software=told.software
    )


def _in_a_thread(machine: Machine, module) -> Told:
    """NVML through a module that is already here; a call that hangs is left behind."""
    reading, own = Reading([], []), Notes()
    ended, found = within(NVML_SECONDS, lambda: read_nvml(machine, module, own, reading))
    told = Told(None, list(reading.boards), list(reading.accelerators), reading.software, list(own.items), ended)
    told.found = found if isinstance(found, Found) else None
    told.problem = None if ended else f"no answer within {NVML_SECONDS} s: the driver hangs"
    return told


def _from_files(machine: Machine, listed: tuple[pci.PciDevice, ...], notes: Notes) -> Found:
    """Name, UUID and address from the driver's own files; without a driver only the PCI tree, and no accelerator."""
    boards = []
    folders = machine.listing(GPUS)
    for address in sorted({*folders, *(device.address for device in listed)}):
        said = pairs(machine.read(f"{GPUS}/{address}/information"))
        device = next((d for d in listed if d.address == address), None)
        boards.append(
            Board(
                index=len(boards),
                vendor="nvidia",
                name=squeeze(said.get("Model")),
                uuid=squeeze(said.get("GPU UUID")) if "?" not in said.get("GPU UUID", "?") else None,
                pci_id=device.pci_id if device else None,
                pci_address=address,
                numa_node=pci.numa_node(machine, address),
                cpu_affinity=pci.local_cpus(machine, address),
                state=None if address in folders else "no-driver",
                pcie=pci.pcie_of(machine, address),
            )
        )
    if boards:
        notes.add("boards", "sysfs", "neither NVML nor nvidia-smi answered: memory, limits and links are unknown")
    version = machine.read("proc/driver/nvidia/version") or ""
    words = version.split("\n")[0].split()
    number = next((word for word in words if word[:1].isdigit() and word.count(".") in (1, 2)), None)
    return Found(boards=tuple(boards), software=Software(driver=number))


def _jetson(machine: Machine) -> tuple[Board, ...]:
    """A Jetson without its tools: the device tree names it; its GPU shares the memory of the processor."""
    model = squeeze(machine.read("proc/device-tree/model")) or ""
    if not re.search(r"jetson|orin|xavier|thor", model, re.IGNORECASE):
        return ()
    return (Board(index=0, vendor="nvidia", name=model, unified_memory=True),)


def _with_distances(machine: Machine, found: Found) -> Found:
    """Pairs that no tool described (``topo -m`` can fail as a whole) get their distance from the PCI tree."""
    known = {(link.a, link.b) for link in found.links}
    new = []
    for a in found.boards:
        for b in found.boards:
            if a.index < b.index and (a.index, b.index) not in known and a.pci_address and b.pci_address:
                kind = pci.distance(machine, a.pci_address, b.pci_address)
                if kind is not None:
                    new.append(Link(a=a.index, b=b.index, kind=kind))
    return replace(found, links=tuple(sorted((*found.links, *new), key=lambda link: (link.a, link.b))))


def _with_addresses(found: Found, listed: tuple[pci.PciDevice, ...]) -> Found:
    """Boards that would not open get the PCI addresses that no other board has, in bus order."""
    known = {board.pci_address for board in found.boards}
    free = [device for device in listed if device.address not in known]
    boards = []
    for board in found.boards:
        if board.pci_address is None and board.state not in (None, "ok") and free:
            device = free.pop(0)
            board = replace(board, pci_address=device.address, pci_id=device.pci_id)
        boards.append(board)
    return replace(found, boards=tuple(boards))
