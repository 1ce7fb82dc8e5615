"""``machine.json`` of a recording: what no other file of it can say, in the keys of ``perfgen detect --json``."""

from __future__ import annotations

import json

from hwdetect.jsonio import parse_hardware
from hwdetect.machine.protocol import Machine
from hwdetect.probes.notes import Notes
from hwdetect.types import Hardware

FILE = "machine.json"


def read_machine_json(machine: Machine, notes: Notes) -> tuple[Hardware | None, frozenset[str]]:
    """The Hardware it describes and the top keys that it has; ``None`` where there is no such file or it is broken."""
    text = machine.read(FILE)
    if text is None or machine.live:
        return None, frozenset()
    try:
        document = json.loads(text)
        return parse_hardware(document), frozenset(document)
    except (ValueError, RecursionError) as error:
        notes.add("hardware", FILE, f"cannot be used: {error}")
        return None, frozenset()
