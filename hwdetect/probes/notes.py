"""What could not be read, by whom, and why."""

from __future__ import annotations

from hwdetect.machine.protocol import Machine
from hwdetect.types import Note


class Notes:
    """Collects what could not be read, by whom, and why."""

    def __init__(self) -> None:
        self.items: list[Note] = []

    def add(self, field: str, who: str, why: str) -> None:
        note = Note(field=field, who=who, why=" ".join(why.split())[:300])
        if note not in self.items:
            self.items.append(note)


def run_tool(machine: Machine, argv: tuple[str, ...], seconds: float, notes: Notes, field: str) -> str | None:
    """What a tool printed; a note for ``field`` where it is here and did not answer as it should."""
    output = machine.run(argv, seconds)
    if output.problem not in (None, "not installed", "not in the recording"):
        notes.add(field, " ".join(argv[:3]), output.problem or "no answer")
    return output.text
