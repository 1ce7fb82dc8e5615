"""Limits of this process that training runs into: bytes of memory that it may lock, files that it may have open."""

from __future__ import annotations

import re

from hwdetect.machine.protocol import Machine
from hwdetect.probes.notes import Notes
from hwdetect.probes.parsing import parse_pairs

FILE = "proc/self/limits"
IPC_LOCK = 14  # CAP_IPC_LOCK of capabilities(7): who has it may lock as much as there is


def read_lockable_bytes(machine: Machine, notes: Notes) -> int | None:
    """Bytes of memory that this process may lock; ``None`` where there is no limit, or nothing could be read."""
    soft, _ = _read_row(machine, "Max locked memory", "memory.lockable_bytes", notes)
    return None if soft is None or _may_lock_all(machine) else soft


def read_open_files(machine: Machine, notes: Notes) -> tuple[int | None, int | None]:
    """How many files may be open, and how far this process may raise that itself."""
    return _read_row(machine, "Max open files", "software.open_files", notes)


def _read_row(machine: Machine, name: str, field: str, notes: Notes) -> tuple[int | None, int | None]:
    """Soft and hard limit of a row; ``None``: unlimited."""
    text = machine.read(FILE)
    if text is None:
        return None, None
    row = re.search(rf"^{name}\s+(\d{{1,19}}|unlimited)\s+(\d{{1,19}}|unlimited)\b", text, re.MULTILINE | re.ASCII)
    if row is None:
        notes.add(field, "procfs", f"{FILE} has no row {name!r} with two limits")
        return None, None
    soft, hard = (None if value == "unlimited" else int(value) for value in row.groups())
    return soft, hard


def _may_lock_all(machine: Machine) -> bool:
    held = parse_pairs(machine.read("proc/self/status")).get("CapEff", "")
    return bool(re.fullmatch(r"[0-9a-fA-F]{1,16}", held)) and bool(int(held, 16) >> IPC_LOCK & 1)
