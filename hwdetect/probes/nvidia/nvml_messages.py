"""What has been read of NVML so far, and how a child process passes it on: one line for each state of the reading."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field

from hwdetect.probes.partial import PartialHardware
from hwdetect.types import Accelerator, Board, Note, Software

MARK = b"hwdetect-nvml:"  # a driver's own prints carry no such mark


@dataclass(slots=True)
class NvmlProgress:
    """Filled board by board, so that what was read before a hang is not lost."""

    boards: list[Board]
    accelerators: list[Accelerator]
    software: Software = field(default_factory=Software)
    after_each_board: Callable[[], None] = lambda: None


@dataclass(slots=True)
class NvmlMessage:
    """What was read when the reader ended: everything (``hardware``), or the boards up to a hang or a crash."""

    hardware: PartialHardware | None = None
    boards: list[Board] = field(default_factory=list)
    accelerators: list[Accelerator] = field(default_factory=list)
    software: Software = field(default_factory=Software)
    notes: list[Note] = field(default_factory=list)
    complete: bool = False
    problem: str | None = None


def encode_message(message: NvmlMessage) -> bytes:
    """One marked line; base64, so that no byte of it can end the line."""
    return MARK + base64.b64encode(pickle.dumps(message)) + b"\n"


def decode_last_message(output: bytes) -> NvmlMessage:
    """The last complete message among the lines of the child's output; an empty one where there is none."""
    for line in reversed(output.split(b"\n")):
        if line.startswith(MARK):
            try:
                message = pickle.loads(base64.b64decode(line.removeprefix(MARK), validate=True))  # from our own child
            except (ValueError, EOFError, pickle.UnpicklingError):
                continue  # cut off by the end
            if isinstance(message, NvmlMessage):
                return message
    return NvmlMessage()
