"""How a folder differs from what would be written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from generator.emit.emitted import Emitted, Tree, read_record
from generator.emit.outcomes import (
    REPORT,
    Kind,
    Outcome,
    Standing,
    count_lines,
    decide_file,
    is_edited,
    keep_measured,
    read_standing,
)
from generator.errors import SourceError


def find_drift(target: Path, new: Tree, emitted: Tree) -> tuple[Outcome, ...]:
    """What writing the tree ``new`` to ``target`` would do to each file, and which of them somebody edited since they were
    ``emitted``, where that is known."""
    return tuple(find_file_drift(target, name, new[name], emitted.get(name)) for name in sorted(new))


def read_emitted_tree(target: Path) -> Tree:
    """What was written there; nothing where that is not kept, or damaged: it only tells who changed a file."""
    try:
        return read_record(target) or {}
    except SourceError:
        return {}


def find_file_drift(target: Path, name: str, new: Emitted, emitted: Emitted | None) -> Outcome:
    mine = read_standing(target, name)
    if mine.obstacle:
        return Outcome(name=name, kind=Kind.CONFLICT, why=mine.obstacle)
    if name == REPORT and mine.file:
        new, emitted = keep_measured(new, mine.file), emitted and keep_measured(emitted, mine.file)
    outcome = count_lines(target, decide_file(name, mine, mine.file, new, False))
    if mine == Standing():
        return replace(outcome, why="it was removed" if emitted else "")
    edited = emitted is not None and outcome.kind is Kind.UPDATED and is_edited(mine, emitted)
    return replace(outcome, why="it was edited by hand") if edited else outcome
