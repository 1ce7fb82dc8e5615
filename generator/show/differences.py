"""What an update would change, or what drifted, as a person wants to read it: words first, then files, lines last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from generator.emit.changes import Change, format_changes
from generator.emit.emitted import FOLDER
from generator.emit.outcomes import Kind, Outcome
from generator.errors import escape_control

Say = Callable[..., None]
QUIET = (Kind.SAME, Kind.KEPT)


def show_update(notes: tuple[str, ...], changes: tuple[Change, ...], outcomes: tuple[Outcome, ...], say: Say) -> None:
    for line in (*notes, *(format_changes(changes) or ["the plan is the same"]), ""):
        say(escape_control(line))
    show_files(outcomes, say)


def show_files(outcomes: tuple[Outcome, ...], say: Say) -> None:
    """A line for each file that something becomes of; conflicts last, where they are read."""
    rows = [o for o in outcomes if o.kind not in QUIET and not o.name.startswith(f"{FOLDER}/")]
    width = min(max((len(o.name) for o in rows), default=0), 40)
    for outcome in sorted(rows, key=lambda o: (o.kind is Kind.CONFLICT, o.name)):
        counts = f"+{outcome.added} -{outcome.removed}" if outcome.added or outcome.removed else ""
        why = f": {outcome.why}" if outcome.why else ""
        say(escape_control(f"  {outcome.name:<{width}}  {counts:>11}  {outcome.kind}{why}"))
    kept = [o.name for o in outcomes if o.kind is Kind.KEPT]
    if kept:
        say(escape_control(f"  your edits stay, and nothing is new there: {', '.join(kept)}"))


def to_json(changes: tuple[Change, ...], outcomes: tuple[Outcome, ...], plan: dict[str, Any]) -> dict[str, Any]:
    """For --json: every file is listed; its ``kind`` is the name of a ``Kind``."""
    return {
        "changes": [
            {f.name: getattr(change, f.name) for f in fields(change)} | {"text": str(change)} for change in changes
        ],
        "files": [
            {f: getattr(o, f) for f in ("name", "added", "removed", "why")}
            | {"kind": o.kind.name.lower(), "beside": o.beside[0] if o.beside else None}
            for o in outcomes
        ],
        "conflicts": [o.name for o in outcomes if o.kind is Kind.CONFLICT],
        "plan": plan,
    }
