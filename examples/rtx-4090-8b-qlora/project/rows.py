"""The rows of a JSON-lines file."""

import json
from collections.abc import Iterator
from pathlib import Path

import open_data

UNREADABLE = open_data.UNREADABLE


def read_rows(file: Path) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, with their numbers."""
    with open_data.open_data(file) as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, line


def parse_row(line: bytes) -> dict:
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except RecursionError as error:
        raise ValueError(error) from None
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    return row
