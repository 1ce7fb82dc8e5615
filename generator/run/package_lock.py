"""`perfgen init --lock`: the project's own lock.py, run in the new tree before it lands."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from generator.errors import SourceError
from generator.progress import tell_progress
from generator.run.plan_file import FILE
from hwdetect.machine.process import HeadAndTail, isolate_python, run_process

SCRIPT, LOCKED = "lock.py", "requirements.lock"
"""of the project: what locks, and what it writes"""
SECONDS = 1800
"""pip fetches the packages whose index has no metadata beside them, torch's of several GB among them"""
KEPT_BYTES = 1 << 20
"""of the beginning and the end of what it prints"""


def lock_packages(folder: Path, say: Callable[[str], None]) -> dict:
    """Write requirements.lock and the base image's digest into the tree; its plan.json then. Raises ``SourceError``."""
    tell_progress(
        "lock: pip looks up every package, and fetches those that it cannot ask about: this may take minutes …"
    )
    # -P: of the tree only lock.py itself is run, whatever its other files are called
    done = run_process(
        (sys.executable, "-P", SCRIPT),
        SECONDS,
        errors=subprocess.PIPE,
        environment=isolate_python() | {"PYTHONDONTWRITEBYTECODE": "1"},
        folder=folder,
        output=HeadAndTail(KEPT_BYTES, KEPT_BYTES),
    )
    if done.problem or done.code:
        why = done.problem or done.errors.decode("utf-8", "replace").strip() or f"{SCRIPT} ended with {done.code}"
        raise SourceError(f"nothing was written: {why}", "without --lock nothing is asked; later: make lock")
    for line in done.raw.decode("utf-8", "replace").splitlines():
        say(f"  {line}")
    return json.loads((folder / FILE).read_text(encoding="utf-8"))
