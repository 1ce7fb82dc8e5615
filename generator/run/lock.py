"""`perfgen init --lock`: the project's own lock.py, run in the new tree before it lands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from generator.errors import SourceError
from generator.run.plan_file import FILE

SCRIPT = "lock.py"


def lock_packages(folder: Path, say: Callable[[str], None]) -> dict:
    """Write requirements.lock and the base image's digest into the tree; its plan.json then. Raises ``SourceError``."""
    # -P: of the tree only lock.py itself is run, whatever its other files are called
    done = subprocess.run(
        [sys.executable, "-P", SCRIPT],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )
    if done.returncode:
        raise SourceError(
            f"nothing was written: {done.stderr.strip()}", "without --lock nothing is asked; later: make lock"
        )
    for line in done.stdout.splitlines():
        say(f"  {line}")
    return json.loads((folder / FILE).read_text(encoding="utf-8"))
