"""The rows of a text file: its lines."""

from collections.abc import Iterator
from pathlib import Path

from open_data import open_data


def read_rows(file: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of the file, numbered."""
    with open_data(file) as lines:
        yield from enumerate(lines, start=1)
