"""NVML in a process of its own: a driver that hangs in the kernel, or a library that crashes, ends there and not here.

A thread would not do: a thread that waits inside the kernel keeps its process from ending, and ``dlopen`` holds
Python's lock. The child tells after every board what it has, one line each, so that a hang costs only what follows.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from hwdetect.probes.found import Found
from hwdetect.types import Accelerator, Board, Note, Software

MARK = b"hwdetect-nvml:"  # a driver's own prints carry no such mark


@dataclass(slots=True)
class Told:
    """What the child had told when it ended: everything (``found``), or the boards up to a hang or a crash."""

    found: Found | None = None
    boards: list[Board] = field(default_factory=list)
    accelerators: list[Accelerator] = field(default_factory=list)
    software: Software = field(default_factory=Software)
    notes: list[Note] = field(default_factory=list)
    complete: bool = False
    problem: str | None = None


class Apart:
    """Stands for the ``pynvml`` module where that is to be asked in a child process."""

    def read(self, seconds: float) -> Told:
        from hwdetect.command import of_ours, run_process

        ended = run_process(of_ours("nvml_child"), seconds)
        told = last_told(ended.raw)
        if told.complete:
            return told
        crash = f"the library crashed (signal {-ended.code})" if ended.code and ended.code < 0 else None
        ended_early = f"its process ended early (exit status {ended.code})"
        told.problem = f"{ended.problem}: the driver hangs" if ended.problem else crash or ended_early
        return told


def last_told(raw: bytes) -> Told:
    """The last whole message among the lines of the child's output."""
    import base64
    import pickle

    for line in reversed(raw.split(b"\n")):
        if line.startswith(MARK):
            try:
                told = pickle.loads(base64.b64decode(line.removeprefix(MARK), validate=True))  # from our own child
            except (ValueError, EOFError, pickle.UnpicklingError):
                continue  # cut off by the end
            if isinstance(told, Told):
                return told
    return Told()


def main(arguments: Sequence[str]) -> None:
    import base64
    import pickle

    from hwdetect.machine import Live
    from hwdetect.nvml_library import load
    from hwdetect.probes.nvml import Reading, read_nvml
    from hwdetect.probes.reading import Notes

    notes, reading = Notes(), Reading([], [])

    def tell(found: Found | None = None, *, complete: bool = False) -> None:
        told = Told(
            found, list(reading.boards), list(reading.accelerators), reading.software, list(notes.items), complete
        )
        os.write(1, MARK + base64.b64encode(pickle.dumps(told)) + b"\n")

    module = load()
    if isinstance(module, str):
        notes.add("boards", "NVML", module)
        tell(complete=True)
        return
    reading.after_each_board = tell
    tell(read_nvml(Live(), module, notes, reading), complete=True)
