"""How a folder differs from what would be written."""

from __future__ import annotations

import difflib
from pathlib import Path

from generator.errors import DriftError


def show_diff(stage: Path, target: Path, files: list[Path], say) -> None:
    """Unified diff of what DEST holds against what would be written. Raises ``DriftError`` (exit 7) if they differ."""
    changed = 0
    for path in files:
        old = (target / path).read_text(encoding="utf-8").splitlines(True) if (target / path).is_file() else []
        new = (stage / path).read_text(encoding="utf-8").splitlines(True)
        lines = list(difflib.unified_diff(old, new, str(target / path), f"{path} (would be written)"))
        changed += bool(lines)
        say("".join(lines), nl=False)
    if changed:
        raise DriftError(f"{changed} of {len(files)} files differ from what would be written")
    say("no difference")
