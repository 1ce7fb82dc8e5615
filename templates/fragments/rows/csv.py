"""The rows of a CSV file, or of one with tabs."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import open_data

UNREADABLE = (*open_data.UNREADABLE, csv.Error)


def read_rows(file: Path) -> Iterator[tuple[int, dict]]:
    """The rows below the header, numbered as an editor shows them (a field may hold line breaks)."""
    csv.field_size_limit(2**31 - 1)
    delimiter = "\t" if ".tsv" in file.suffixes else ","
    with io.TextIOWrapper(
        open_data.open_data(file), encoding="utf-8-sig", errors="surrogateescape", newline=""
    ) as lines:
        reader = csv.DictReader(lines, delimiter=delimiter)
        for row in reader:
            yield reader.line_num, row


def parse_row(row: dict) -> dict:
    if None in row or None in row.values():
        raise ValueError("not as many columns as the first line")
    return row
