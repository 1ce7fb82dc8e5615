"""Runs every probe under its own deadline and puts the readings together into one ``Hardware``."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from hwdetect import checks, findings, unread
from hwdetect.complete import add_machine_json
from hwdetect.machine.live import Live
from hwdetect.machine.protocol import Machine
from hwdetect.machine.recorded import Recorded
from hwdetect.maker_tools import get_tool_of
from hwdetect.probes import (
    apple,
    cgroup,
    disks,
    intel,
    memory,
    network,
    nodes,
    others,
    pci,
    software,
    visible,
)
from hwdetect.probes.amd.read import read_amd
from hwdetect.probes.cpu.cpuid_dump import read_cpuid
from hwdetect.probes.cpu.read import read_cpu
from hwdetect.probes.formats.hwloc_xml import read_hwloc
from hwdetect.probes.formats.mlperf import read_mlperf
from hwdetect.probes.formats.nccl_topo import read_nccl_topo
from hwdetect.probes.notes import Notes
from hwdetect.probes.nvidia.read import read_nvidia
from hwdetect.probes.parsing import clean_line
from hwdetect.probes.partial import NOTHING, PartialHardware, fill_unknown, list_board_accelerators
from hwdetect.probes.run import ProbeRun
from hwdetect.types import (
    Accelerator,
    Board,
    Cpu,
    Disk,
    Hardware,
    Link,
    Memory,
    NetworkPort,
    Nodes,
    Note,
    PciPath,
    Software,
)

SHARE_OF_DEADLINE = 0.9  # what the probes may use of it; the rest is for putting things together

# Sources of accelerators, in the order of their boards; file formats of recordings come after what a machine says.
ACCELERATORS: tuple[tuple[str, Callable[[Machine, Notes], PartialHardware]], ...] = (
    ("nvidia", read_nvidia),
    ("amd", read_amd),
    ("intel", intel.read_intel),
    ("others", others.read_others),
    ("apple", apple.read_apple),
)
DIRECT = ("nvlink", "xgmi", "xelink", "neuronlink", "c2c", "nvswitch")
NOT_RECORDED = "not in the recording"  # of every tool that a recording has no output of: no news
FORMATS: tuple[tuple[str, Callable[[Machine, Notes], PartialHardware]], ...] = (
    ("nccl-topo", read_nccl_topo),
    ("hwloc", read_hwloc),
    ("mlperf", read_mlperf),
)


def detect_machine(
    root: Path | None,
    *,
    measure: bool,
    progress: Callable[[str], None] | None,
    deadline_s: float,
    report: Callable[[str], None] | None = None,
) -> Hardware:
    """``hwdetect.detect``: a live machine within the deadline, or a recording."""
    seconds = deadline_s * SHARE_OF_DEADLINE
    machine: Machine = Live(seconds) if root is None else Recorded(Path(root))
    hardware = read_machine(machine, seconds, report)
    if measure and machine.live:
        from hwdetect.measure.take import measure_hardware

        hardware = measure_hardware(hardware, progress or (lambda text: None))
    return replace(hardware, findings=findings.find_problems(hardware))


def read_machine(machine: Machine, deadline_s: float, report: Callable[[str], None] | None = None) -> Hardware:
    """Every probe of ``machine``, in parallel on a live one, one after the other on a recording. No findings yet.

    ``report`` is told how long each took.
    """

    def processor(notes: Notes) -> tuple[Cpu, Memory]:
        limits = cgroup.read_limits(machine, notes)
        the_cpu = read_cpu(machine, limits, notes)
        return fill_unknown(the_cpu, read_cpuid(machine, notes)), memory.read_memory(machine, limits, notes)

    kinds = ACCELERATORS if machine.live else ACCELERATORS + FORMATS
    sources = [ProbeRun(name, lambda notes, probe=probe: probe(machine, notes), NOTHING) for name, probe in kinds]
    host = ProbeRun("cpu", processor, (Cpu(), Memory()))
    disk = ProbeRun("disks", lambda notes: disks.read_disks(machine, notes), ())
    soft = ProbeRun("software", lambda notes: software.read_software(machine, notes), Software())
    node = ProbeRun("nodes", lambda notes: nodes.read_nodes(machine), Nodes())
    ports = ProbeRun("network", lambda notes: network.read_network(machine), ())
    parts: list[ProbeRun] = [host, *sources, ports, disk, soft, node]
    _run_probes(parts, machine.live, deadline_s)
    for part in parts:
        if report:
            took = f"{part.seconds:.2f} s" if part.done else "given up"
            report(f"{part.name}: {took}, {len(part.notes.items)} notes")
    own = Notes()
    assembled = _join_parts(machine, host, sources, ports, disk, soft, node, own)
    all_notes = (*(note for part in parts for note in part.notes.items), *own.items)
    notes = tuple(note for note in all_notes if note.why != NOT_RECORDED)
    hardware = clean_texts(add_machine_json(machine, assembled, notes))
    hardware = checks.drop_faults(_drop_answered_notes(hardware))
    return replace(hardware, notes=hardware.notes + unread.write_missing_notes(hardware))


def clean_texts(value: Any) -> Any:
    """Every text below on one line that a terminal shows and does not obey, whichever file or tool it is of."""
    if isinstance(value, str):
        return value if value.isprintable() else clean_line(value) or value
    if isinstance(value, tuple):
        return tuple(clean_texts(item) for item in value)
    if is_dataclass(value):
        return replace(value, **{field.name: clean_texts(getattr(value, field.name)) for field in fields(value)})
    return value


def _drop_answered_notes(hardware: Hardware) -> Hardware:
    """Without the notes of a source that failed where another one has read the same."""

    def is_unanswered(note: Note) -> bool:
        if note.who == "procfs" and note.field == "cpu":
            return hardware.cpu == Cpu()
        return note.field != "memory.total_bytes" or hardware.memory.total_bytes is None

    return replace(hardware, notes=tuple(note for note in hardware.notes if is_unanswered(note)))


def _run_probes(parts: list[ProbeRun], live: bool, deadline_s: float) -> None:
    if not live:
        for part in parts:
            part.run()
        return
    ends = time.monotonic() + deadline_s
    for part in parts:
        part.start()
    for part in parts:
        part.finish(ends, deadline_s)


def _join_parts(
    machine: Machine,
    host: ProbeRun[tuple[Cpu, Memory]],
    sources: list[ProbeRun[PartialHardware]],
    ports: ProbeRun[tuple[NetworkPort, ...]],
    disk: ProbeRun[tuple[Disk, ...]],
    soft: ProbeRun[Software],
    node: ProbeRun[Nodes],
    notes: Notes,
) -> Hardware:
    the_cpu, the_memory = host.value
    the_software = soft.value
    devices = _stack_sources([part.value for part in sources])
    boards = tuple(_match_device(board) for board in devices.boards)
    accelerators = devices.accelerators if devices.accelerators is not None else list_board_accelerators(boards)
    value, accelerators = visible.apply_visibility(machine, accelerators, boards, notes)
    the_cpu = fill_unknown(the_cpu, devices.cpu)
    # /sys lists every port of this machine; a topology file only those that it was made for.
    the_network = ports.value or devices.network
    return Hardware(
        cpu=replace(the_cpu, budget=the_cpu.budget or the_cpu.cpus_allowed or the_cpu.cpus_online),
        memory=fill_unknown(the_memory, devices.memory),
        boards=boards,
        accelerators=tuple(fill_instance(a, boards, notes) for a in accelerators),
        links=tuple(_tell_peer_access(link, boards) for link in devices.links),
        network=the_network,
        paths=devices.paths or _measure_paths(machine, boards, the_network),
        disks=disk.value,
        software=replace(fill_unknown(the_software, devices.software), visible_devices=value),
        # The scheduler knows better than a description.
        nodes=devices.nodes if devices.nodes and node.value == Nodes() else node.value,
    )


def _stack_sources(sources: list[PartialHardware]) -> PartialHardware:
    """All sources as one: boards numbered through, and everything that names a board moved along."""
    total = NOTHING
    for one in sources:
        # Every source numbers its boards from 0.
        base = len(total.boards)
        same = {b.index: base + place for place, b in enumerate(one.boards)}
        boards = tuple(replace(b, index=same[b.index]) for b in one.boards)
        own = one.accelerators if one.accelerators is not None else list_board_accelerators(one.boards)
        moved = tuple(replace(a, board=same.get(a.board, a.board)) for a in own)
        earlier = total.accelerators or ()
        total = PartialHardware(
            boards=total.boards + boards,
            accelerators=earlier + tuple(replace(a, index=len(earlier) + i) for i, a in enumerate(moved)),
            links=total.links
            + tuple(replace(k, a=same.get(k.a, base + k.a), b=same.get(k.b, base + k.b)) for k in one.links),
            network=total.network + one.network,
            paths=total.paths + tuple(replace(p, board=same.get(p.board, base + p.board)) for p in one.paths),
            cpu=fill_unknown(total.cpu, one.cpu),
            memory=fill_unknown(total.memory, one.memory),
            software=fill_unknown(total.software, one.software),
            nodes=total.nodes or one.nodes,
        )
    return total


def _match_device(board: Board) -> Board:
    """The board with its id in the catalogue, if its readings prove one."""
    if board.device is not None:
        return board
    from hwdetect import catalog
    from hwdetect.catalog.matching import find_physical_name

    name, memory = board.name, board.memory_bytes
    physical = find_physical_name(name) if get_tool_of(board.vendor).virtual_names else None
    if physical is not None:  # a virtual GPU has a part of the memory, and the units of its board in turns
        board, name, memory = replace(board, virtualization=board.virtualization or "VGPU"), physical, None
    return replace(board, device=catalog.match(board.vendor, name, board.pci_id, board.compute_capability, memory))


def _tell_peer_access(link: Link, boards: tuple[Board, ...]) -> Link:
    """Where no library was asked: boards whose driver allows no peer access over PCIe (GeForce from Turing on) have none."""
    if link.p2p is not None or link.kind in DIRECT:
        return link
    from hwdetect import catalog

    ends = [board.device for board in boards if board.index in (link.a, link.b)]
    off = [device for device in ends if device and catalog.load(device).p2p is False]
    return replace(link, p2p=False) if off else link


def fill_instance(accelerator: Accelerator, boards: tuple[Board, ...], notes: Notes) -> Accelerator:
    """What no tool said of a MIG instance and the catalogue knows: its name, its memory, its share of the board's compute units."""
    board = next((b for b in boards if b.index == accelerator.board), None)
    units, whole = accelerator.compute_units, accelerator.compute_share is not None
    if board is None or not board.device or ((whole or units is None) and not board.mig_enabled):
        return accelerator
    from hwdetect import catalog, mig

    device = catalog.load(board.device)
    if board.mig_enabled and units is not None and accelerator.profile is None:
        accelerator = replace(accelerator, profile=mig.name_profile(device, units, accelerator.memory_bytes))
    profile = mig.find_profile(device, accelerator.profile or "") if board.mig_enabled else None
    if accelerator.memory_bytes is None and profile is not None:
        notes.add(f"accelerators.{accelerator.index}.memory_bytes", "hwdetect", f"taken from the name {profile.name}")
        accelerator = replace(accelerator, memory_bytes=profile.memory_bytes)
    if accelerator.compute_share is None and device.compute_units:
        known = units if units is not None else profile.units if profile is not None else None
        share = None if known is None else min(1.0, known / device.compute_units)
        accelerator = replace(accelerator, compute_share=share)
    return accelerator


def _measure_paths(machine: Machine, boards: tuple[Board, ...], ports: tuple[NetworkPort, ...]) -> tuple[PciPath, ...]:
    """How far each board is from each RDMA port, by the PCI tree."""
    paths = []
    for board in boards:
        for port in ports:
            if port.kind == "ethernet" or not board.pci_address or not port.pci_address:
                continue
            kind = pci.classify_distance(machine, board.pci_address, port.pci_address)
            if kind is not None:
                paths.append(PciPath(board=board.index, port=port.name, kind=kind))
    return tuple(paths)
