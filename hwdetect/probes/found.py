"""What one source says about accelerators and around them; sources are merged in ``assemble``."""

from __future__ import annotations

from dataclasses import dataclass, field

from hwdetect.types import Accelerator, Board, Cpu, Link, Memory, NetworkPort, Nodes, Path, Software


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """``accelerators`` is ``None`` where every healthy board is one. Everything else is empty where unsaid."""

    boards: tuple[Board, ...] = ()
    accelerators: tuple[Accelerator, ...] | None = None
    links: tuple[Link, ...] = ()
    network: tuple[NetworkPort, ...] = ()
    paths: tuple[Path, ...] = ()
    cpu: Cpu = field(default_factory=Cpu)
    memory: Memory = field(default_factory=Memory)
    software: Software = field(default_factory=Software)
    nodes: Nodes | None = None


NOTHING = Found()
UNUSABLE = frozenset({"Prohibited"})
# A board whose infoROM is corrupted computes; what it counted (ECC) is lost.
WORKING = frozenset({None, "ok", "corrupted-inforom"})


def usable(board: Board) -> bool:
    """Whether a job can be given this board: it answers, and its compute mode admits processes."""
    return board.state in WORKING and board.compute_mode not in UNUSABLE


def whole_boards(boards: tuple[Board, ...]) -> tuple[Accelerator, ...]:
    """One accelerator a usable board; a CPU's own graphics part only where it is all there is."""
    real = tuple(board for board in boards if not board.integrated) or boards
    return numbered(
        tuple(
            Accelerator(
                index=0, board=b.index, name=b.name, memory_bytes=b.memory_bytes, uuid=b.uuid, compute_share=1.0
            )
            for b in real
            if usable(b)
        )
    )


def numbered(accelerators: tuple[Accelerator, ...]) -> tuple[Accelerator, ...]:
    """The same accelerators with ``index`` 0, 1, …"""
    from dataclasses import replace

    return tuple(replace(a, index=i) for i, a in enumerate(accelerators))
