"""What a field of ``Hardware`` can be: ranges, lengths, and that what is named is there. Pure.

One table for both ways in. A file that a person hands over (``jsonio.parse_hardware``) is refused with the first fault;
of a machine's own reading (``assemble``) what cannot be is dropped and noted, for the rest of it is true.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace

from hwdetect.maker_tools import get_seller, get_tool_of
from hwdetect.types import (
    Accelerator,
    Board,
    Cache,
    CoreKind,
    Cpu,
    Disk,
    Hardware,
    Link,
    Measurement,
    Memory,
    NetworkPort,
    Nodes,
    Note,
    Pcie,
    PciPath,
    Software,
)

EXBIBYTE = 1 << 60
MOST_BYTES_PER_S = 10**15  # a thousand times the memory of the fastest board
MOST_INDEX = 1 << 20
CPUS = (1, 65_536)  # Linux is built for 8,192 at most (NR_CPUS of x86)
BYTES = (0, EXBIBYTE)
SOME_BYTES = (1, EXBIBYTE)
RATE = (1, MOST_BYTES_PER_S)
NODE = (0, 65_535)
WATTS = (0, 1_000_000)
GENERATION, WIDTH = (1, 16), (1, 64)

# The least and the most, both allowed; what is not listed is no amount.
RANGES: dict[type, dict[str, tuple[float, float]]] = {
    Cache: {"level": (1, 16), "size_bytes": BYTES, "count": (1, 1 << 20)},
    CoreKind: {"cpus": CPUS},
    Cpu: {
        **dict.fromkeys(("packages", "cores", "cpus_online", "cpus_allowed", "budget", "numa_nodes"), CPUS),
        "cpus_listed": (0, CPUS[1]),
        "quota": (0.001, CPUS[1]),
        "max_hz": (1_000_000, 10**12),
    },
    Memory: {
        **dict.fromkeys(("total_bytes", "limit_bytes"), SOME_BYTES),
        **dict.fromkeys(
            (
                "available_bytes",
                "shm_bytes",
                "swap_total_bytes",
                "swap_used_bytes",
                "huge_pages_bytes",
                "lockable_bytes",
            ),
            (0, 1 << 64),
        ),
        **dict.fromkeys(("numa_nodes", "gpu_numa_nodes"), (0, 65_536)),
    },
    Pcie: {
        **dict.fromkeys(("generation", "generation_max", "generation_load"), GENERATION),
        **dict.fromkeys(("width", "width_max"), WIDTH),
    },
    Board: {
        "index": (0, MOST_INDEX),
        "memory_bytes": SOME_BYTES,
        "numa_node": NODE,
        "power_limit_watts": WATTS,
        "power_default_watts": WATTS,
        "temperature_c": (-273.15, 1000),
        "performance_state": (0, 15),
        "ecc_errors": (0, 1 << 63),
        "compute_units": (1, 1_000_000),
        "nvlinks_active": (0, 1024),
        "nvlink_bytes_per_s": (0, MOST_BYTES_PER_S),
    },
    Accelerator: {
        "index": (0, MOST_INDEX),
        "board": (0, MOST_INDEX),
        "memory_bytes": SOME_BYTES,
        "free_memory_bytes": BYTES,
        "compute_share": (0.001, 1.0),
        "compute_units": (1, 1_000_000),
        "gpu_instance": (0, MOST_INDEX),
        "compute_instance": (0, MOST_INDEX),
    },
    Link: {"a": (0, MOST_INDEX), "b": (0, MOST_INDEX), "count": (1, 1024), "bandwidth_bytes_per_s": RATE},
    PciPath: {"board": (0, MOST_INDEX)},
    NetworkPort: {"rate_bytes_per_s": RATE, "numa_node": NODE, "virtual_functions": (0, 1 << 20)},
    Disk: {"total_bytes": BYTES, "free_bytes": BYTES, "read_bytes_per_s": RATE},
    Nodes: {
        "count": (1, 100_000),
        "scheduler_cpus": CPUS,
        "scheduler_gpus": (0, 65_536),
        "scheduler_memory_bytes": BYTES,
        "processes": (1, 100_000_000),
        "rank": (0, 100_000_000),
    },
    Software: dict.fromkeys(("open_files", "open_files_most"), (0, 1 << 64)),
    Measurement: {"value": (1e-12, 1e30), "spread": (0, 1e30), "size": (1, 1 << 40)},
}
MOST_BOARDS = 256  # an NVL72 rack is the largest that exists as one machine
LENGTHS = {
    "boards": MOST_BOARDS,
    "accelerators": MOST_BOARDS * 8,
    "links": MOST_BOARDS * (MOST_BOARDS - 1) // 2,
    "paths": MOST_BOARDS * 256,
}
MOST_ITEMS = 10_000  # of every other list
LONGEST_TEXT = 4096  # characters
LONGEST_ID = 100
CAPABILITY = re.compile(r"\d{1,2}\.\d{1,2}", re.ASCII)
# A board reports up to this much more than its nominal size, and an instance no more than its board.
MEMORY_SLACK = 1.07


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A field that cannot be what it is: ``path`` as in the file (``boards.0.memory_bytes``), what it is, what it may be."""

    path: str
    value: object
    allowed: str

    def __str__(self) -> str:
        return f"{self.path}: {self.allowed} (it is {shorten(self.value)})"


def shorten(value: object, most: int = 60) -> str:
    """``value`` on one line of at most ``most`` characters, in JSON's words for what is no number."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, int) and abs(value) >= 10**most:
        return "a number of more digits than anything has"
    if isinstance(value, dict | list | tuple):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    text = repr(value)
    return text if len(text) <= most else text[: most - 3] + "..."


def find_faults(hardware: Hardware) -> Iterator[Fault]:
    """Every field out of its range and every reference to what is not there, in the order of the fields."""
    yield from find_wrong_values(hardware, "")
    yield from find_wrong_references(hardware)


def find_wrong_values(value: object, path: str) -> Iterator[Fault]:
    """Amounts out of range, texts and lists that are too long, below ``value``."""
    if is_dataclass(value):
        ranges = RANGES.get(type(value), {})
        for field in fields(value):
            below, item = f"{path}.{field.name}" if path else field.name, getattr(value, field.name)
            if field.name in ranges and item is not None:
                yield from check_range(item, below, *ranges[field.name])
            else:
                yield from find_wrong_values(item, below)
    elif isinstance(value, tuple):
        most = LENGTHS.get(path, MOST_ITEMS)
        if len(value) > most:
            yield Fault(path=path, value=value, allowed=f"at most {most} entries are expected")
            return
        for place, item in enumerate(value):
            yield from find_wrong_values(item, f"{path}.{place}")
    elif isinstance(value, str) and (len(value) > LONGEST_TEXT or not value.isprintable()):
        allowed = f"one line of at most {LONGEST_TEXT} characters, none of them for control, is expected"
        yield Fault(path=path, value=value, allowed=allowed)


def check_range(value: float, path: str, least: float, most: float) -> Iterator[Fault]:
    if not least <= value <= most:  # so neither for NaN
        kind = "a whole number" if isinstance(value, int) else "a number"
        yield Fault(
            path=path, value=value, allowed=f"{kind} from {format_limit(least)} to {format_limit(most)} is expected"
        )


def format_limit(limit: float) -> str:
    if isinstance(limit, int) and limit >= 1 << 30 and limit & (limit - 1) == 0:
        return f"2^{limit.bit_length() - 1}"
    return f"{limit:g}" if limit >= 10**6 else f"{limit}"


def find_wrong_references(hardware: Hardware) -> Iterator[Fault]:
    """Numbers of boards that are not there, what stands twice, devices that nobody knows, parts larger than their board."""
    boards = {board.index: board for board in hardware.boards}
    yield from find_repeated("boards", [board.index for board in hardware.boards], "index")
    yield from find_repeated("accelerators", [a.index for a in hardware.accelerators], "index")
    for place, board in enumerate(hardware.boards):
        yield from check_board(board, f"boards.{place}")
    there = (
        f"the index of one of the boards ({', '.join(map(str, sorted(boards)[:8])) or 'there are none'}) is expected"
    )
    for place, accelerator in enumerate(hardware.accelerators):
        where = f"accelerators.{place}"
        if accelerator.board not in boards:
            yield Fault(path=f"{where}.board", value=accelerator.board, allowed=there)
            continue
        yield from check_part(
            accelerator.memory_bytes, boards[accelerator.board].memory_bytes, f"{where}.memory_bytes", "its board"
        )
        yield from check_part(
            accelerator.free_memory_bytes, accelerator.memory_bytes, f"{where}.free_memory_bytes", "all of its memory"
        )
    # Some tools list links between boards that they do not describe; who read that says so.
    described = not any(note.field == "boards" for note in hardware.notes)
    for place, link in enumerate(hardware.links):
        for name, end in (("a", link.a), ("b", link.b)):
            if end not in boards and described:
                yield Fault(path=f"links.{place}.{name}", value=end, allowed=there)
        if link.a == link.b:
            yield Fault(path=f"links.{place}.b", value=link.b, allowed="another board than a is expected")
    for place, path in enumerate(hardware.paths):
        if path.board not in boards:
            yield Fault(path=f"paths.{place}.board", value=path.board, allowed=there)


def find_repeated(path: str, values: Sequence[object], name: str) -> Iterator[Fault]:
    earlier = set()
    for place, value in enumerate(values):
        if value in earlier:
            yield Fault(path=f"{path}.{place}.{name}", value=value, allowed=f"each {name} may stand once")
        earlier.add(value)


def check_board(board: Board, path: str) -> Iterator[Fault]:
    capability = board.compute_capability if get_tool_of(board.vendor).capability else None
    if capability and not CAPABILITY.fullmatch(capability):
        allowed = "MAJOR.MINOR, as 9.0, is expected"
        yield Fault(path=f"{path}.compute_capability", value=capability, allowed=allowed)
    if board.device is None:
        return
    from hwdetect import catalog  # reads files: only where a device is named

    try:
        device = catalog.load(board.device[:LONGEST_ID])
    except catalog.UnknownDevice as error:
        near = f", as {', '.join(error.close)}" if error.close else ""
        allowed = f"an id that `perfgen devices` lists{near}, is expected"
        yield Fault(path=f"{path}.device", value=board.device, allowed=allowed)
        return
    if get_seller(board.vendor) != device.vendor:
        yield Fault(
            path=f"{path}.vendor", value=board.vendor, allowed=f"{device.vendor} is expected, who makes {device.id}"
        )
    known = None if device.unified_memory else device.memory_bytes
    yield from check_part(board.memory_bytes, known, f"{path}.memory_bytes", device.id)


def check_part(part: int | None, total: int | None, path: str, name: str) -> Iterator[Fault]:
    """A part is no more than what it is a part of, but for what rounding adds."""
    if part is not None and total is not None and part > total * MEMORY_SLACK:
        yield Fault(path=path, value=part, allowed=f"no more than {name} has ({total}) is expected")


def drop_faults(hardware: Hardware) -> Hardware:
    """A reading without what cannot be: a field is unknown then, or its entry gone where it cannot be without; each is noted."""
    notes = list(hardware.notes)
    while faults := list(find_faults(hardware)):
        # One an entry, the last first: the places of the others stay what they are.
        entries = {tuple(fault.path.split(".")[:2]): fault for fault in faults}
        for fault in reversed(entries.values()):
            why = f"read {shorten(fault.value)}: {fault.allowed}"[:300]
            note = Note(field=fault.path, who="hwdetect", why=why)
            notes += [] if note in notes else [note]  # a recording has those of its machine
            hardware = drop_field(hardware, fault.path.split("."))
    return replace(hardware, notes=tuple(notes[:MOST_ITEMS]))


def drop_field(value, path: list[str]):
    """``value`` with the field at ``path`` unknown; ``None`` where ``value`` cannot be without it."""
    name, below = path[0], path[1:]
    if isinstance(value, tuple):
        place = int(name)
        item = value[place]
        kept = drop_field(item, below) if below and is_dataclass(item) else None
        return value[:place] + (() if kept is None else (kept,)) + value[place + 1 :]
    item = getattr(value, name)
    if below:
        changed = drop_field(item, below)
        return replace(value, **{name: type(item)() if changed is None else changed})
    if isinstance(item, tuple):
        return replace(value, **{name: item[: LENGTHS.get(name, MOST_ITEMS)]})
    optional = "None" in str(next(field.type for field in fields(value) if field.name == name))
    return replace(value, **{name: None}) if optional else None
