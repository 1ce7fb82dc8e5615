"""The rows of a JSON-lines file."""

from collections.abc import Iterator
from pathlib import Path


def read_rows(file: Path) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, with their numbers."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, line
