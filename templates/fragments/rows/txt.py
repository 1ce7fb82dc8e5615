"""The rows of a text file: its lines."""

from collections.abc import Iterator
from pathlib import Path

import open_data

UNREADABLE = open_data.UNREADABLE


def read_rows(file: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of the file, numbered."""
    with open_data.open_data(file) as lines:
        yield from enumerate(lines, start=1)
