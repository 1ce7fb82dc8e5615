"""Files that a reader must not wait for, or read to their end."""

from __future__ import annotations

import os
from pathlib import Path

ENDLESS_KINDS = ("pipe", "endless", "large")


def make_endless(path: Path, kind: str) -> Path:
    """A pipe that nobody writes to, a device without an end, or a file of one byte more than 64 MiB."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate((64 << 20) + 1)
    return path
