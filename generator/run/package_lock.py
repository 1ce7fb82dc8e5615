"""`perfgen init --lock`: what `make lock` of the project runs, in the new tree before it lands."""

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

SCRIPTS, LOCKED = ("lock_image.py", "lock.py"), "requirements.lock"
"""of the project: what locks, the first that is there, and what it writes"""
SECONDS = 1800
"""pip fetches the packages whose index has no metadata beside them, torch's of several GB among them"""
KEPT_BYTES = 1 << 20
"""of the beginning and the end of what it prints"""


def lock_packages(folder: Path, say: Callable[[str], None]) -> dict:
    """Write requirements.lock and the base image's digest into the tree; its plan.json then. Raises ``SourceError``."""
    tell_progress(
        "lock: pip looks up every package, and fetches those that it cannot ask about: this may take minutes …"
    )
    # the script imports its neighbour, and of a tree that is this moment written each file is known
    environment = {name: value for name, value in isolate_python().items() if name != "PYTHONSAFEPATH"}
    script = next(name for name in SCRIPTS if (folder / name).is_file())
    done = run_process(
        (sys.executable, script),
        SECONDS,
        errors=subprocess.PIPE,
        environment=environment | {"PYTHONDONTWRITEBYTECODE": "1"},
        folder=folder,
        output=HeadAndTail(KEPT_BYTES, KEPT_BYTES),
    )
    if done.problem or done.code:
        why = done.problem or done.errors.decode("utf-8", "replace").strip() or f"{script} ended with {done.code}"
        raise SourceError(f"nothing was written: {why}", "without --lock nothing is asked; later: make lock")
    for line in done.raw.decode("utf-8", "replace").splitlines():
        say(f"  {line}")
    return json.loads((folder / FILE).read_text(encoding="utf-8"))
