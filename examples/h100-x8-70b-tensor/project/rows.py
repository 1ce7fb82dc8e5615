"""The rows of a JSON-lines file."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import open_data

UNREADABLE = open_data.UNREADABLE


def read_rows(file: Path, span: tuple[int, int] = (0, sys.maxsize)) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank and begin in ``span``, a range of bytes, with their numbers from its first on."""
    for number, line in enumerate(open_data.read_lines(file, span), start=1):
        if line.strip():
            yield number, line


def parse_row(line: bytes) -> dict:
    try:
        row = json.loads(line.decode("utf-8-sig"), object_pairs_hook=open_data.make_object)
    except RecursionError as error:
        raise ValueError(error) from None
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    return row if open_data.has_few_brackets(line) else open_data.check_nesting(row)
