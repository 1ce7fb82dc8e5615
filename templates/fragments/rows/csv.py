"""The rows of a CSV file."""

import csv
from collections.abc import Iterator
from pathlib import Path


def read_rows(file: Path) -> Iterator[tuple[int, dict]]:
    """The rows below the header, numbered as an editor shows them (a field may hold line breaks)."""
    csv.field_size_limit(2**31 - 1)
    with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as lines:
        reader = csv.DictReader(lines)
        for row in reader:
            yield reader.line_num, row
