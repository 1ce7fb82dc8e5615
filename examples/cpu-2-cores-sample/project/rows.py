"""The rows of a text file: its lines."""

from collections.abc import Iterator
from pathlib import Path


def read_rows(file: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of the file, numbered."""
    with file.open("rb") as lines:
        yield from enumerate(lines, start=1)
