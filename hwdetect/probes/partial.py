"""What one source knows of a machine, and how two partial values become one; ``assemble`` joins all sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, TypeVar

from hwdetect.types import WORKING_STATES, Accelerator, Board, Cpu, Link, Memory, NetworkPort, Nodes, PciPath, Software

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialHardware:
    """A part of ``Hardware``: ``accelerators`` is ``None`` where every healthy board is one, the rest empty where unknown."""

    boards: tuple[Board, ...] = ()
    accelerators: tuple[Accelerator, ...] | None = None
    links: tuple[Link, ...] = ()
    network: tuple[NetworkPort, ...] = ()
    paths: tuple[PciPath, ...] = ()
    cpu: Cpu = field(default_factory=Cpu)
    memory: Memory = field(default_factory=Memory)
    software: Software = field(default_factory=Software)
    nodes: Nodes | None = None


NOTHING = PartialHardware()
UNUSABLE = frozenset({"Prohibited"})


def is_usable(board: Board) -> bool:
    """Whether a job can be given this board: it answers, and its compute mode admits processes."""
    return board.state in WORKING_STATES and board.compute_mode not in UNUSABLE


def list_board_accelerators(boards: tuple[Board, ...]) -> tuple[Accelerator, ...]:
    """One accelerator per usable board; a CPU's own graphics part only where it is all there is."""
    real = tuple(board for board in boards if not board.integrated) or boards
    return number_accelerators(
        tuple(
            Accelerator(
                index=0, board=b.index, name=b.name, memory_bytes=b.memory_bytes, uuid=b.uuid, compute_share=1.0
            )
            for b in real
            if is_usable(b)
        )
    )


def number_accelerators(accelerators: Sequence[Accelerator]) -> tuple[Accelerator, ...]:
    """The same accelerators with ``index`` 0, 1, …"""
    return tuple(replace(a, index=i) for i, a in enumerate(accelerators))


def fill_unknown(first: T, second: T) -> T:
    """A dataclass with every unknown field of ``first`` taken from ``second``."""
    missing = {f.name for f in fields(first) if getattr(first, f.name) is None}
    return replace(first, **{name: getattr(second, name) for name in missing}) if missing else first
