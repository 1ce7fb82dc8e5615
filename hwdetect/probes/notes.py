"""What could not be read, by whom, and why."""

from __future__ import annotations

from hwdetect.machine.protocol import Machine
from hwdetect.probes.parsing import clean_line, explain_cut
from hwdetect.types import Note


class Notes:
    """Collects what could not be read, by whom, and why."""

    def __init__(self) -> None:
        self.items: list[Note] = []

    def add(self, field: str, who: str, why: str) -> None:
        note = Note(field=field, who=who, why=" ".join(why.split())[:300])
        if note not in self.items:
            self.items.append(note)


def run_tool(
    machine: Machine, argv: tuple[str, ...], seconds: float, notes: Notes, field: str, end: str | None = None
) -> str | None:
    """What a tool printed; a note for ``field`` where it is here and did not answer as it should, or not to its ``end``."""
    output = machine.run(argv, seconds)
    if output.problem not in (None, "not installed", "not in the recording"):
        notes.add(field, " ".join(argv[:3]), output.problem or "no answer")
    note_cut(notes, field, " ".join(argv[:3]), output.text, end)
    return output.text


def note_cut(notes: Notes, field: str, tool: str, text: str | None, end: str | None = None) -> None:
    if why := explain_cut(text, end):
        notes.add(field, tool, f"its answer may be cut off: {why}")


def note_no_board(notes: Notes, tool: str, text: str | None) -> None:
    """Where a tool answered and none of its boards can be read: its answer is cut off, of another form, or says why in words."""
    first = clean_line((text or "").strip().split("\n")[0])
    if first:
        # of JSON no part, which may be a serial number
        answer = f"JSON of {len(text or ''):,} characters, cut off or of another form" if first[0] in "[{" else first
        notes.add("boards", tool, f"no board in its answer: {answer}")
