"""A note for every key reading that is null and that nobody has spoken of: null always has a reason beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hwdetect.maker_tools import get_tool_of
from hwdetect.types import Accelerator, Board, Hardware, Note

CPU = ("model_name", "architecture", "packages", "cores", "cpus_online", "cpus_allowed", "budget", "numa_nodes",
       "isa_features")  # fmt: skip
MEMORY = ("total_bytes", "available_bytes", "numa_nodes")
BOARD = ("name", "pci_id", "pci_address")
CAPABILITY = ("compute_capability", "mig_enabled")
PCIE = ("generation", "generation_max", "width", "width_max")


def write_missing_notes(hardware: Hardware) -> tuple[Note, ...]:
    """The missing notes, one for each null field of the cpu, the memory and the boards."""
    spoken = {note.field for note in hardware.notes}
    wanted = [*_list_nulls("cpu", hardware.cpu, CPU), *_list_nulls("memory", hardware.memory, MEMORY)]
    for board in hardware.boards:
        wanted += _list_board_nulls(board, hardware.accelerators)
    return tuple(
        Note(field=field, who="hwdetect", why="no source here says it")
        for field in wanted
        # A note for "boards.0" speaks for all of its fields.
        if field not in spoken and not any(field.startswith(f"{known}.") for known in spoken)
    )


def _list_nulls(name: str, part: object, fields: Sequence[str]) -> Iterator[str]:
    return (f"{name}.{field}" for field in fields if getattr(part, field) is None)


def _list_board_nulls(board: Board, accelerators: Sequence[Accelerator]) -> Iterator[str]:
    where, maker = f"boards.{board.index}", get_tool_of(board.vendor)
    yield from _list_nulls(where, board, BOARD if maker.pcie else BOARD[:1])
    if board.memory_bytes is None and not board.unified_memory:
        yield f"{where}.memory_bytes"
    if maker.capability:
        yield from _list_nulls(where, board, CAPABILITY)
    if maker.pcie:
        yield from _list_nulls(f"{where}.pcie", board.pcie, PCIE)
    if any(a.board == board.index and a.free_memory_bytes is None and a.memory_bytes for a in accelerators):
        yield f"{where}.free_memory_bytes"
