"""KFD topology of sysfs: one node a compute unit that the driver offers, several of which may be one board."""

from __future__ import annotations

from collections.abc import Mapping

from hwdetect.machine.protocol import Machine
from hwdetect.probes.notes import Notes
from hwdetect.probes.parsing import clean_line, parse_integer
from hwdetect.probes.partial import NOTHING, PartialHardware, number_accelerators
from hwdetect.types import Accelerator, Board, Link

NODES = "sys/class/kfd/kfd/topology/nodes"
XGMI = 11  # io_link type, CRAT specification (kfd_crat.h: CRAT_IOLINK_TYPE_XGMI)
FRAMEBUFFER = frozenset({1, 2})  # heap types: frame buffer public, private
MAX_NODES = 4096
# Graphics parts of processors, by LLVM's target table (APU rows): https://llvm.org/docs/AMDGPUUsage.html#processors
INTEGRATED = frozenset(
    [
        "gfx801",
        "gfx902",
        "gfx909",
        "gfx90c",
        "gfx1013",
        "gfx1033",
        "gfx1035",
        "gfx1036",
        "gfx1103",
        "gfx1150",
        "gfx1151",
        "gfx1152",
        "gfx1153",
    ]
)


def read_kfd(machine: Machine, notes: Notes) -> PartialHardware:
    """Boards, their partitions as accelerators, and XGMI links between boards."""
    numbers = sorted(int(n) for n in machine.list_folder(NODES) if n.isdecimal() and len(n) < 6)[:MAX_NODES]
    nodes = {n: _parse_properties(machine.read(f"{NODES}/{n}/properties")) for n in numbers}
    # CPUs are nodes of the topology as well: they have no SIMDs.
    gpus = {n: p for n, p in nodes.items() if p.get("simd_count", 0) > 0 and p.get("vendor_id", 0x1002) == 0x1002}
    if not gpus:
        return NOTHING
    groups: dict[object, list[int]] = {}
    for n, p in gpus.items():
        groups.setdefault(_get_board_key(n, p), []).append(n)
    board_of = {n: i for i, members in enumerate(groups.values()) for n in members}
    memory = {n: _read_memory(machine, n, gpus[n]) for n in gpus}
    if all(size is None for size in memory.values()):
        notes.add("boards.memory_bytes", "kfd", "no memory banks can be read")
    boards = tuple(
        _build_board(i, members, gpus[members[0]], [memory[n] for n in members])
        for i, members in enumerate(groups.values())
    )
    accelerators = tuple(
        Accelerator(
            index=0,
            board=board_of[n],
            name=boards[board_of[n]].name,
            memory_bytes=memory[n],
            free_memory_bytes=_read_free_memory(machine, n, memory[n]),
            profile=_name_partition(len(groups[_get_board_key(n, p)]), p),
            compute_units=_count_compute_units(p),
            compute_share=1.0 / len(groups[_get_board_key(n, p)]),
        )
        for n, p in gpus.items()
    )
    return PartialHardware(
        boards=boards,
        accelerators=drop_integrated(boards, accelerators),
        links=_read_links(machine, board_of),
    )


def _parse_properties(text: str | None) -> dict[str, int]:
    properties = {}
    for line in (text or "").splitlines():
        parts = line.split()
        if len(parts) == 2 and (value := parse_integer(parts[1])) is not None:
            properties[parts[0]] = value
    # A unique_id of 64 bits may have 20 digits, more than ``parse_integer`` takes.
    for line in (text or "").splitlines():
        parts = line.split()
        if len(parts) == 2 and parts[0] in ("unique_id", "hive_id") and parts[1].isdecimal() and len(parts[1]) <= 20:
            properties[parts[0]] = int(parts[1])
    return properties


def _get_board_key(number: int, properties: Mapping[str, int]) -> object:
    """Nodes of one board share its unique id; older kernels without one, its PCI place (functions are partitions)."""
    unique = properties.get("unique_id")
    if unique:
        return ("unique", unique)
    place = properties.get("location_id")
    # The low three bits are the PCI function.
    return ("place", properties.get("domain", 0), place >> 3) if place else ("node", number)


def format_gfx_name(version: int | None) -> str | None:
    """``gfx942`` of 90402: major, minor and stepping, the last two in hexadecimal."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version else None


def _build_board(index: int, members: list[int], properties: Mapping[str, int], memory: list[int | None]) -> Board:
    place, device = properties.get("location_id"), properties.get("device_id")
    name = format_gfx_name(properties.get("gfx_target_version"))
    known = [size for size in memory if size is not None]
    # Nodes that upstream tools copy have one place; real partitions have one each and share the board's memory.
    distinct = len(members) if len(members) > 1 and properties.get("num_xcc") else 1
    units = _count_compute_units(properties)
    return Board(
        index=index,
        vendor="amd",
        name=name,
        architecture=name,
        uuid=f"GPU-{properties['unique_id']:016x}" if properties.get("unique_id") else None,
        pci_id=f"1002:{device:04x}" if device and device < 1 << 16 else None,
        pci_address=_format_address(properties.get("domain", 0), place) if place else None,
        memory_bytes=(sum(known) if distinct > 1 else known[0]) if known else None,
        compute_units=units * distinct if units else None,
        state="ok",
    )


def _format_address(domain: int, place: int) -> str:
    # Bus in bits 8-15, device in 3-7, function in 0-2 (PCI's own packing).
    return f"{domain:04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"


def _count_compute_units(properties: Mapping[str, int]) -> int | None:
    per = properties.get("simd_per_cu")
    return properties["simd_count"] // per if per else None


def _read_memory(machine: Machine, number: int, properties: Mapping[str, int]) -> int | None:
    """Frame buffer of a node: its memory banks, else what older kernels print among the properties."""
    total = 0
    for bank in machine.list_folder(f"{NODES}/{number}/mem_banks"):
        bank_properties = _parse_properties(machine.read(f"{NODES}/{number}/mem_banks/{bank}/properties"))
        if bank_properties.get("heap_type") in FRAMEBUFFER:
            total += bank_properties.get("size_in_bytes", 0)
    return total or properties.get("local_mem_size") or None


def _read_free_memory(machine: Machine, number: int, total: int | None) -> int | None:
    used = [
        parse_integer(clean_line(machine.read(f"{NODES}/{number}/mem_banks/{bank}/used_memory")))
        for bank in machine.list_folder(f"{NODES}/{number}/mem_banks")
    ]
    known = [u for u in used if u is not None]
    return max(0, total - sum(known)) if total is not None and known else None


def _name_partition(parts: int, properties: Mapping[str, int]) -> str | None:
    """``cpx`` and the like for a partition: named by how many dies it has."""
    if parts == 1 or "num_xcc" not in properties:
        return None
    return {1: "cpx", 2: "qpx", 3: "tpx", 4: "dpx"}.get(properties["num_xcc"], f"{properties['num_xcc']}xcc")


def drop_integrated(boards: tuple[Board, ...], accelerators: tuple[Accelerator, ...]) -> tuple[Accelerator, ...]:
    """Without graphics parts of processors where a real board stands beside them."""
    real = {board.index for board in boards if board.architecture not in INTEGRATED}
    return number_accelerators(tuple(a for a in accelerators if not real or a.board in real))


def _read_links(machine: Machine, board_of: Mapping[int, int]) -> tuple[Link, ...]:
    """One XGMI link for each pair of boards; nodes of one board are not linked to each other."""
    rates: dict[tuple[int, int], float | None] = {}
    for number, board in board_of.items():
        for link in machine.list_folder(f"{NODES}/{number}/io_links"):
            properties = _parse_properties(machine.read(f"{NODES}/{number}/io_links/{link}/properties"))
            other = board_of.get(properties.get("node_to", -1))
            if properties.get("type") != XGMI or other is None or other == board:
                continue
            pair = (min(board, other), max(board, other))
            rate = properties.get("max_bandwidth", 0) * 1e6 or None  # the kernel's megabytes per second
            rates[pair] = max((r for r in (rates.get(pair), rate) if r), default=None)
    return tuple(Link(a=a, b=b, kind="xgmi", bandwidth_bytes_per_s=rate) for (a, b), rate in sorted(rates.items()))
