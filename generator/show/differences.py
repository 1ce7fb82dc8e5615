"""What an update would change, or what drifted, as a person wants to read it: words first, then files, lines last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from generator.emit.changes import Change, compare_plans, format_changes
from generator.emit.drift import find_drift, read_emitted_tree
from generator.emit.emitted import FOLDER, Tree
from generator.emit.locked import carry_lock
from generator.emit.outcomes import Kind, Outcome, list_differences
from generator.errors import DriftError, escape_control
from generator.progress import Say, choose_say, echo_json
from generator.run.plan_file import FILE, read_object


def show_update(
    notes: tuple[str, ...], changes: tuple[Change, ...], outcomes: tuple[Outcome, ...], say: Say, brief: bool = False
) -> None:
    """``brief``: of the files only those in conflict."""
    for line in (*notes, *(format_changes(changes) or ["the plan is the same"]), ""):
        say(escape_control(line))
    show_files([o for o in outcomes if not brief or o.kind is Kind.CONFLICT], say)


def show_files(outcomes: Sequence[Outcome], say: Say) -> None:
    """A line for each file that something becomes of; conflicts last, where they are read."""
    rows = [o for o in outcomes if o.kind not in (Kind.SAME, Kind.KEPT) and not o.name.startswith(f"{FOLDER}/")]
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


def show_drift(plan: dict[str, Any], tree: Tree, target: Path, full: bool, as_json: bool) -> None:
    """`init --diff`: words, then files; with ``full`` their lines. Raises ``DriftError`` (exit 7) where a file differs."""
    say = choose_say(as_json)
    old = read_object(target / FILE) if (target / FILE).is_file() else None
    locked = carry_lock(target, old or {}, read_emitted_tree(target), tree)
    changes, drift = compare_plans(old, plan) if old else (), find_drift(target, locked.new, locked.base)
    show_update(locked.notes, changes, drift, say)
    if full:
        say("".join(list_differences(target, drift)), nl=False)
    report: dict[str, Any] = {"schema": 1, "dest": str(target), "files": sorted(tree), "smoke": None, "written": False}
    listed = to_json(changes, drift, plan)
    report |= {"changes": listed["changes"], "differences": listed["files"], "plan": plan}
    count = sum(outcome.kind is not Kind.SAME for outcome in drift)
    if count:
        raise DriftError(f"{count} of {len(tree)} files differ from what would be written", report=report)
    say("no difference")
    if as_json:
        echo_json(report)
