"""How a folder differs from what would be written."""

from __future__ import annotations

import difflib
from pathlib import Path

from generator.errors import DriftError


def show_diff(stage: Path, target: Path, files: list[Path], say) -> None:
    """Unified diff of what DEST holds against what would be written. Raises ``DriftError`` (exit 7) if they differ."""
    changed = 0
    for path in files:
        lines = list_differences(target / path, stage / path, f"{path} (would be written)")
        changed += bool(lines)
        say("".join(lines), nl=False)
    if changed:
        raise DriftError(f"{changed} of {len(files)} files differ from what would be written")
    say("no difference")


def list_differences(old: Path, new: Path, title: str) -> list[str]:
    try:
        lines = old.read_text(encoding="utf-8").splitlines(True) if old.is_file() else []
    except UnicodeDecodeError:
        return [f"{old} differs: it is no text\n"]
    return list(difflib.unified_diff(lines, new.read_text(encoding="utf-8").splitlines(True), str(old), title))
