"""Calls of NVML that may be refused: the value or why there is none, and how its answers are written."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from hwdetect.probes.notes import Notes
from hwdetect.probes.parsing import clean_line

# Codes that say something of the board as a whole (nvml.h, nvmlReturn_t).
STATES = {
    4: "no-permission",
    8: "insufficient-power",
    11: "irq-issue",
    14: "corrupted-inforom",
    15: "lost",
    16: "reset-required",
    17: "blocked-by-system",
}
ATTRIBUTE_STATES = frozenset({8, 11, 14, 15, 16})  # a refused or unsupported attribute says nothing of the board
# nvmlReturn_t of nvml.h: the 31 codes besides success.
CODES = {
    1: "uninitialized", 2: "invalid argument", 3: "not supported", 4: "no permission", 5: "already initialized",
    6: "not found", 7: "insufficient size", 8: "insufficient power", 9: "driver not loaded", 10: "timeout",
    11: "interrupt request issue", 12: "library not found", 13: "function not found", 14: "corrupted infoROM",
    15: "GPU is lost", 16: "GPU requires reset", 17: "blocked by the operating system",
    18: "driver and library versions differ", 19: "in use", 20: "insufficient memory", 21: "no data",
    22: "vGPU does not support ECC", 23: "insufficient resources", 24: "frequency not supported",
    25: "argument version mismatch", 26: "deprecated", 27: "not ready", 28: "GPU not found", 29: "invalid state",
    30: "reset type not supported", 999: "unknown error",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Refused:
    """A call that gave no value: NVML's code (``None`` where the binding itself failed) and words."""

    code: int | None
    why: str


class Nvml:
    """Asks one function at a time; remembers the codes that concern a whole board."""

    def __init__(self, module, notes: Notes):
        self.module, self.notes = module, notes
        self.states: dict[int, str] = {}

    def ask(self, name: str, *arguments):
        """The value, or ``Refused``. Never raises for anything that the library or its binding does."""
        function: Callable | None = getattr(self.module, name, None)  # older bindings lack newer functions
        if function is None:
            return Refused(None, "the binding does not know this call")
        try:
            return function(*arguments)
        except self.module.NVMLError as error:
            code = getattr(error, "value", None)
            return Refused(code, f"NVML code {code} ({CODES.get(code, 'unknown')})")
        except (UnicodeDecodeError, TypeError, ValueError, AttributeError, OSError) as error:
            return Refused(None, f"{type(error).__name__}: {error}")

    def field(self, board: int, field: str, name: str, *arguments):
        """The value for a field of a board, or ``None`` with a note."""
        answer = self.ask(name, *arguments)
        if not isinstance(answer, Refused):
            return answer
        if answer.code in ATTRIBUTE_STATES:
            self.states.setdefault(board, STATES[answer.code])
        self.notes.add(f"boards.{board}.{field}", name, answer.why)
        return None


def get_value(answer):
    return None if isinstance(answer, Refused) else answer


def get_line(value: object) -> str | None:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return clean_line(value) if isinstance(value, str) else None


def format_pci_address(info: object) -> str | None:
    """``0000:3b:00.0`` from NVML's structure."""
    text = get_line(getattr(info, "busId", None)) or ""
    match = re.fullmatch(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d)", text)
    return f"{match.group(1).lower().lstrip('0').zfill(4)}:{match.group(2).lower()}" if match else None
