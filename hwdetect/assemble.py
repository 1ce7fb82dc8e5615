"""Runs every probe under its own deadline and puts the readings together into one ``Hardware``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Generic, TypeVar

from hwdetect import findings, unread
from hwdetect.machine import Live, Machine, Recorded
from hwdetect.probes import (
    amd,
    apple,
    cgroup,
    cpu,
    cpuid_dump,
    disks,
    hwloc_xml,
    intel,
    memory,
    mlperf,
    nccl_topo,
    network,
    nodes,
    nvidia,
    others,
    pci,
    software,
    visible,
)
from hwdetect.probes.found import NOTHING, Found, whole_boards
from hwdetect.probes.machine_json import read_machine_json
from hwdetect.probes.reading import Notes, merged
from hwdetect.types import (
    Accelerator,
    Board,
    Cpu,
    Disk,
    Hardware,
    Link,
    Measurement,
    Memory,
    NetworkPort,
    Nodes,
    Note,
    Software,
)
from hwdetect.types import Path as PciPath

SHARE_OF_DEADLINE = 0.9  # what the probes may use of it; the rest is for putting things together

# Sources of accelerators, in the order of their boards; file formats of recordings come after what a machine says.
ACCELERATORS: tuple[tuple[str, Callable[[Machine, Notes], Found]], ...] = (
    ("nvidia", nvidia.read_nvidia),
    ("amd", amd.read_amd),
    ("intel", intel.read_intel),
    ("others", others.read_others),
    ("apple", apple.read_apple),
)
NOT_RECORDED = "not in the recording"  # of every tool that a recording has no output of: no news
FORMATS: tuple[tuple[str, Callable[[Machine, Notes], Found]], ...] = (
    ("nccl-topo", nccl_topo.read_nccl_topo),
    ("hwloc", hwloc_xml.read_hwloc),
    ("mlperf", mlperf.read_mlperf),
)


def detect_machine(
    root: Path | None,
    *,
    measure: bool,
    progress: Callable[[str], None] | None,
    deadline_s: float,
) -> Hardware:
    """``hwdetect.detect``: a live machine within the deadline, or a recording."""
    seconds = deadline_s * SHARE_OF_DEADLINE
    machine: Machine = Live(seconds) if root is None else Recorded(Path(root))
    hardware = read(machine, seconds)
    if measure and machine.live:
        from hwdetect.measure import measured

        hardware = replace(hardware, measured=measured(hardware, progress or (lambda text: None)))
    return replace(hardware, findings=findings.of(hardware))


T = TypeVar("T")
Item = TypeVar("Item", Link, NetworkPort, Disk, PciPath, Accelerator, Measurement)


class Part(Generic[T]):
    """One probe's result, with its own notes. On a live machine it runs in a thread that is left behind if it hangs."""

    def __init__(self, name: str, probe: Callable[[Notes], T], empty: T):
        self.name, self.empty, self.notes, self.done = name, empty, Notes(), False
        self.value: T = empty
        self._probe = probe
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        self.value = self._probe(self.notes)
        self.done = True

    def start(self) -> None:
        self._thread = threading.Thread(target=self.run, name=f"hwdetect-{self.name}", daemon=True)
        self._thread.start()

    def finish(self, ends: float, deadline_s: float) -> None:
        assert self._thread is not None
        self._thread.join(timeout=max(0.0, ends - time.monotonic()))
        if not self.done:
            self.value, self.notes = self.empty, Notes()
            hangs = self._thread.is_alive()
            why = f"no answer within {deadline_s:.1f} s" if hangs else "this probe failed: its traceback was printed"
            self.notes.add(self.name, "deadline" if hangs else "hwdetect", why)


def read(machine: Machine, deadline_s: float) -> Hardware:
    """Every probe of ``machine``, in parallel on a live one, one after the other on a recording. No findings yet."""

    def processor(notes: Notes) -> tuple[Cpu, Memory]:
        limits = cgroup.read_limits(machine)
        the_cpu = cpu.read_cpu(machine, limits, notes)
        return merged(the_cpu, cpuid_dump.read_cpuid(machine, notes)), memory.read_memory(machine, limits, notes)

    kinds = ACCELERATORS if machine.live else ACCELERATORS + FORMATS
    sources = [Part(name, lambda notes, probe=probe: probe(machine, notes), NOTHING) for name, probe in kinds]
    host = Part("cpu", processor, (Cpu(), Memory()))
    disk = Part("disks", lambda notes: disks.read_disks(machine, notes), ())
    soft = Part("software", lambda notes: software.read_software(machine), Software())
    node = Part("nodes", lambda notes: nodes.read_nodes(machine), Nodes())
    ports = Part("network", lambda notes: network.read_network(machine), ())
    parts: list[Part] = [host, *sources, ports, disk, soft, node]
    _run(parts, machine.live, deadline_s)
    own = Notes()
    assembled = _together(machine, host, sources, ports, disk, soft, node, own)
    told = (*(note for part in parts for note in part.notes.items), *own.items)
    notes = tuple(note for note in told if note.why != NOT_RECORDED)
    open_yet = _still_open(_completed(machine, assembled, notes))
    return replace(open_yet, notes=open_yet.notes + unread.notes_of(open_yet))


def _still_open(hardware: Hardware) -> Hardware:
    """Without the notes of a source that failed where another one has read the same."""

    def open_yet(note: Note) -> bool:
        if note.who == "procfs" and note.field == "cpu":
            return hardware.cpu == Cpu()
        return note.field != "memory.total_bytes" or hardware.memory.total_bytes is None

    return replace(hardware, notes=tuple(note for note in hardware.notes if open_yet(note)))


def _run(parts: list[Part], live: bool, deadline_s: float) -> None:
    if not live:
        for part in parts:
            part.run()
        return
    ends = time.monotonic() + deadline_s
    for part in parts:
        part.start()
    for part in parts:
        part.finish(ends, deadline_s)


def _together(
    machine: Machine,
    host: Part[tuple[Cpu, Memory]],
    sources: list[Part[Found]],
    ports: Part[tuple[NetworkPort, ...]],
    disk: Part[tuple[Disk, ...]],
    soft: Part[Software],
    node: Part[Nodes],
    notes: Notes,
) -> Hardware:
    the_cpu, the_memory = host.value
    the_software = soft.value
    found = _stacked([part.value for part in sources])
    boards = tuple(_matched(board) for board in found.boards)
    accelerators = found.accelerators if found.accelerators is not None else whole_boards(boards)
    value, accelerators = visible.seen(machine, accelerators, boards, notes)
    the_cpu = merged(the_cpu, found.cpu)
    the_network = ports.value or found.network
    return Hardware(
        cpu=replace(the_cpu, budget=the_cpu.budget or the_cpu.cpus_allowed or the_cpu.cpus_online),
        memory=merged(the_memory, found.memory),
        boards=boards,
        accelerators=tuple(_shared(a, boards) for a in accelerators),
        links=found.links,
        network=the_network,
        paths=found.paths or _paths(machine, boards, the_network),
        disks=disk.value,
        software=replace(merged(the_software, found.software), visible_devices=value),
        nodes=found.nodes if found.nodes and node.value == Nodes() else node.value,
    )


def _stacked(found: list[Found]) -> Found:
    """All sources as one: boards numbered through, and everything that names a board moved along."""
    total = NOTHING
    for one in found:
        base = len(total.boards)
        same = {b.index: base + place for place, b in enumerate(one.boards)}
        boards = tuple(replace(b, index=same[b.index]) for b in one.boards)
        own = one.accelerators if one.accelerators is not None else whole_boards(one.boards)
        moved = tuple(replace(a, board=same.get(a.board, a.board)) for a in own)
        earlier = total.accelerators or ()
        total = Found(
            boards=total.boards + boards,
            accelerators=earlier + tuple(replace(a, index=len(earlier) + i) for i, a in enumerate(moved)),
            links=total.links
            + tuple(replace(k, a=same.get(k.a, base + k.a), b=same.get(k.b, base + k.b)) for k in one.links),
            network=total.network + one.network,
            paths=total.paths + tuple(replace(p, board=same.get(p.board, base + p.board)) for p in one.paths),
            cpu=merged(total.cpu, one.cpu),
            memory=merged(total.memory, one.memory),
            software=merged(total.software, one.software),
            nodes=total.nodes or one.nodes,
        )
    return total


def _matched(board: Board) -> Board:
    """The board with its id in the catalogue, if its readings prove one."""
    if board.device is not None:
        return board
    from hwdetect import catalog
    from hwdetect.matching import physical_name

    name, memory = board.name, board.memory_bytes
    physical = physical_name(name) if board.vendor == "nvidia" else None
    if physical is not None:  # a virtual GPU has a part of the memory, and the units of its board in turns
        board, name, memory = replace(board, virtualization=board.virtualization or "VGPU"), physical, None
    return replace(board, device=catalog.match(board.vendor, name, board.pci_id, board.compute_capability, memory))


def _shared(accelerator: Accelerator, boards: tuple[Board, ...]) -> Accelerator:
    """The share of the board's compute units that a MIG instance has, where the catalogue knows how many there are."""
    board = next((b for b in boards if b.index == accelerator.board), None)
    if accelerator.compute_share is not None or accelerator.compute_units is None or board is None or not board.device:
        return accelerator
    from hwdetect import catalog

    units = catalog.load(board.device).compute_units
    return replace(accelerator, compute_share=min(1.0, accelerator.compute_units / units)) if units else accelerator


def _paths(machine: Machine, boards: tuple[Board, ...], ports: tuple[NetworkPort, ...]) -> tuple[PciPath, ...]:
    """How far each board is from each RDMA port, by the PCI tree."""
    found = []
    for board in boards:
        for port in ports:
            if port.kind == "ethernet" or not board.pci_address or not port.pci_address:
                continue
            kind = pci.distance(machine, board.pci_address, port.pci_address)
            if kind is not None:
                found.append(PciPath(board=board.index, port=port.name, kind=kind))
    return tuple(found)


def _filled(boards: tuple[Board, ...], said: tuple[Board, ...]) -> Iterable[Board]:
    """Each board with what machine.json knows of the same one: the one at its place on the bus, or of its number."""
    for board in boards or said:
        same = next((b for b in said if b.pci_address and b.pci_address == board.pci_address), None)
        same = same or next((b for b in said if b.index == board.index and b.vendor == board.vendor), None)
        if same is None or (same.pci_address and board.pci_address and same.pci_address != board.pci_address):
            yield board
        else:
            yield replace(merged(board, same), pcie=merged(board.pcie, same.pcie))


def _listed(read: tuple[Item, ...], said: tuple[Item, ...]) -> tuple[Item, ...]:
    """A list of machine.json where the files give none; where both have as many, what the files leave open."""
    if not read or len(read) != len(said):
        return read or said
    return tuple(merged(one, other) if _same(one, other) else one for one, other in zip(read, said, strict=True))


def _same(one: Item, other: Item) -> bool:
    """Whether two entries speak of the same thing: nothing that both know differs but amounts that change."""
    return all(
        getattr(one, f.name) == getattr(other, f.name)
        for f in fields(one)
        if f.name in ("a", "b", "board", "port", "name", "role", "index", "gpu_instance")
    )


def _completed(machine: Machine, hardware: Hardware, notes: tuple[Note, ...]) -> Hardware:
    """The reading with what machine.json adds: single fields where they are unknown, lists where they are empty."""
    own = Notes()
    extra, keys = read_machine_json(machine, own)
    notes = (*notes, *own.items)
    if extra is None:
        return replace(hardware, notes=notes)
    changes: dict[str, object] = {
        name: merged(getattr(hardware, name), getattr(extra, name)) for name in ("cpu", "memory", "software")
    }
    changes["boards"] = tuple(_filled(hardware.boards, extra.boards))
    for name in ("links", "network", "disks", "paths", "accelerators", "measured"):
        changes[name] = _listed(getattr(hardware, name), getattr(extra, name))
    if "accelerators" in keys:  # what a job was given there; boards and links may be read from other files
        changes["accelerators"] = extra.accelerators
    if hardware.nodes == Nodes():
        changes["nodes"] = extra.nodes
    software_now = changes["software"]
    assert isinstance(software_now, Software)
    changes["software"] = replace(software_now, packages=software_now.packages or extra.software.packages)
    # A capture has the notes of its machine: what a replay cannot ask anew is no news.
    changes["notes"] = extra.notes if "notes" in keys else notes
    return replace(hardware, **changes)  # type: ignore[arg-type]
