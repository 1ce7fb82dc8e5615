"""NVIDIA boards from the best source that answers: NVML, then nvidia-smi, then the driver's files and the PCI tree."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from hwdetect.machine.protocol import Machine, NvmlLibrary
from hwdetect.probes import pci
from hwdetect.probes.notes import Notes
from hwdetect.probes.nvidia.jetson import name_jetson, read_jetson
from hwdetect.probes.nvidia.nvml import read_nvml
from hwdetect.probes.nvidia.nvml_messages import NvmlMessage, NvmlProgress, decode_last_message
from hwdetect.probes.nvidia.smi import read_nvidia_smi
from hwdetect.probes.parsing import clean_line, parse_pairs
from hwdetect.probes.partial import NOTHING, PartialHardware, fill_unknown, is_usable, number_accelerators
from hwdetect.types import Board, Link, Software

# Of 5 for everything. Most of it: nvidia-smi asks the same library, so what hangs here will hang there.
NVML_SECONDS = 2.7
NVML_CHILD = "hwdetect.probes.nvidia.nvml_child"  # started by name: it builds a live machine of its own
GPUS = "proc/driver/nvidia/gpus"
DISPLAY = frozenset({0x0300, 0x0302})
VENDOR = 0x10DE


def read_nvidia(machine: Machine, notes: Notes) -> PartialHardware:
    listed = tuple(d for d in pci.list_pci_devices(machine, DISPLAY) if d.vendor == VENDOR)
    hardware = _read_nvml(machine, notes)
    if not hardware.boards:
        by_tool = read_nvidia_smi(machine, notes)
        hardware = by_tool if by_tool.boards else replace(by_tool, software=hardware.software)
    if not hardware.boards:
        from_files = _read_files(machine, listed, notes)
        hardware = replace(from_files, software=fill_unknown(hardware.software, from_files.software))
    if not hardware.boards:
        jetson = read_jetson(machine)
        hardware = replace(hardware, boards=(jetson,) if jetson else ())
    hardware = replace(hardware, boards=name_jetson(machine, hardware.boards))
    return _add_distances(machine, _add_addresses(hardware, listed))


def _read_nvml(machine: Machine, notes: Notes) -> PartialHardware:
    library = machine.find_nvml()
    if isinstance(library, str):
        notes.add("boards", "NVML", library)
        return NOTHING
    in_child = isinstance(library, NvmlLibrary)
    message = read_in_child(NVML_SECONDS) if in_child else _read_in_thread(machine, library, NVML_SECONDS)
    for note in message.notes:
        notes.add(note.field, note.who, note.why)
    if message.problem is None:
        return message.hardware or NOTHING
    notes.add("boards", "NVML", f"{message.problem}; {len(message.boards)} boards read")
    good = {b.index for b in message.boards if is_usable(b)}
    accelerators = tuple(a for a in message.accelerators if a.board in good)
    return PartialHardware(
        boards=tuple(message.boards),
        accelerators=number_accelerators(accelerators) if accelerators else None,
        software=message.software,
    )


def read_in_child(seconds: float) -> NvmlMessage:
    """What the child process sent, with the reason why it is not all where it ended early."""
    from hwdetect.machine.process import build_own_command, isolate_python, run_process  # subprocess costs milliseconds

    ended = run_process(build_own_command(NVML_CHILD), seconds, environment=isolate_python())
    message = decode_last_message(ended.raw)
    if message.complete:
        return message
    crash = f"the library crashed (signal {-ended.code})" if ended.code and ended.code < 0 else None
    ended_early = f"its process ended early (exit status {ended.code})"
    message.problem = f"{ended.problem}: the driver hangs" if ended.problem else crash or ended_early
    return message


def _read_in_thread(machine: Machine, module, seconds: float) -> NvmlMessage:
    """NVML through a module that is already here; a call that hangs is left behind."""
    progress, own = NvmlProgress([], []), Notes()
    ended, hardware = run_within(seconds, lambda: read_nvml(machine, module, own, progress))
    message = NvmlMessage(
        None, list(progress.boards), list(progress.accelerators), progress.software, list(own.items), ended
    )
    message.hardware = hardware if isinstance(hardware, PartialHardware) else None
    message.problem = None if ended else f"no answer within {seconds} s: the driver hangs"
    return message


def run_within(seconds: float, work: Callable[[], object]) -> tuple[bool, object]:
    """Whether the work ended in time, and its value. Work that hangs is left behind in its thread."""
    box: list[object] = []
    thread = threading.Thread(target=lambda: box.append(work()), daemon=True)
    thread.start()
    thread.join(seconds)
    return bool(box), box[0] if box else None


def _read_files(machine: Machine, listed: tuple[pci.PciDevice, ...], notes: Notes) -> PartialHardware:
    """Name, UUID and address from the driver's own files; without a driver only the PCI tree, and no accelerator."""
    boards = []
    folders = machine.list_folder(GPUS)
    for address in sorted({*folders, *(device.address for device in listed)}):
        information = parse_pairs(machine.read(f"{GPUS}/{address}/information"))
        device = next((d for d in listed if d.address == address), None)
        boards.append(
            Board(
                index=len(boards),
                vendor="nvidia",
                name=clean_line(information.get("Model")),
                uuid=clean_line(information.get("GPU UUID")) if "?" not in information.get("GPU UUID", "?") else None,
                pci_id=device.pci_id if device else None,
                pci_address=address,
                numa_node=pci.read_numa_node(machine, address),
                cpu_affinity=pci.read_local_cpus(machine, address),
                state=None if address in folders else "no-driver",
                pcie=pci.read_pcie(machine, address),
            )
        )
    if boards:
        notes.add("boards", "sysfs", "neither NVML nor nvidia-smi answered: memory, limits and links are unknown")
    version = machine.read("proc/driver/nvidia/version") or ""
    words = version.split("\n")[0].split()
    number = next((word for word in words if word[:1].isdigit() and word.count(".") in (1, 2)), None)
    return PartialHardware(boards=tuple(boards), software=Software(driver=number))


def _add_distances(machine: Machine, hardware: PartialHardware) -> PartialHardware:
    """Pairs that no tool described (``topo -m`` can fail as a whole) get their distance from the PCI tree."""
    known = {(link.a, link.b) for link in hardware.links}
    new = []
    for a in hardware.boards:
        for b in hardware.boards:
            if a.index < b.index and (a.index, b.index) not in known and a.pci_address and b.pci_address:
                kind = pci.classify_distance(machine, a.pci_address, b.pci_address)
                if kind is not None:
                    new.append(Link(a=a.index, b=b.index, kind=kind))
    return replace(hardware, links=tuple(sorted((*hardware.links, *new), key=lambda link: (link.a, link.b))))


def _add_addresses(hardware: PartialHardware, listed: tuple[pci.PciDevice, ...]) -> PartialHardware:
    """Boards that would not open get the PCI addresses that no other board has, in bus order."""
    known = {board.pci_address for board in hardware.boards}
    free = [device for device in listed if device.address not in known]
    boards = []
    for board in hardware.boards:
        if board.pci_address is None and board.state not in (None, "ok") and free:
            device = free.pop(0)
            board = replace(board, pci_address=device.address, pci_id=device.pci_id)
        boards.append(board)
    return replace(hardware, boards=tuple(boards))
