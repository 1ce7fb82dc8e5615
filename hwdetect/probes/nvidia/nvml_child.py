"""NVML in a process of its own: a driver that hangs in the kernel, or a library that crashes, ends there and not here.

A thread would not do: a thread that waits inside the kernel keeps its process from ending, and ``dlopen`` holds
Python's lock. The child sends after every board what it has, one line each, so that a hang costs only what follows.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from hwdetect.machine.live import Live
from hwdetect.machine.nvml_library import load_nvml
from hwdetect.probes.notes import Notes
from hwdetect.probes.nvidia.nvml import read_nvml
from hwdetect.probes.nvidia.nvml_messages import NvmlMessage, NvmlProgress, encode_message
from hwdetect.probes.partial import PartialHardware


def main(arguments: Sequence[str]) -> None:
    """Read NVML and write a message after every board; takes no argument."""
    notes, progress = Notes(), NvmlProgress([], [])

    def send(hardware: PartialHardware | None = None, *, complete: bool = False) -> None:
        boards, accelerators = list(progress.boards), list(progress.accelerators)
        message = NvmlMessage(hardware, boards, accelerators, progress.software, list(notes.items), complete)
        os.write(1, encode_message(message))

    module = load_nvml()
    if isinstance(module, str):
        notes.add("boards", "NVML", module)
        send(complete=True)
        return
    progress.after_each_board = send
    send(read_nvml(Live(), module, notes, progress), complete=True)
