"""The rows of a text file: its lines."""

import sys
from collections.abc import Iterator
from pathlib import Path

import open_data

UNREADABLE = open_data.UNREADABLE


def read_rows(file: Path, span: tuple[int, int] = (0, sys.maxsize)) -> Iterator[tuple[int, bytes]]:
    """The lines that begin in ``span``, a range of bytes, numbered from its first on."""
    yield from enumerate(open_data.read_lines(file, span), start=1)
