"""The rows of a CSV file, or of one with semicolons, tabs or bars."""

import csv
import io
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import open_data

UNREADABLE = (*open_data.UNREADABLE, csv.Error)


def read_rows(file: Path) -> Iterator[tuple[int, dict]]:
    """The rows below the header, numbered as an editor shows them (a field may hold line breaks)."""
    csv.field_size_limit(2**31 - 1)
    packed = open_data.open_data(file)
    with io.TextIOWrapper(packed, encoding="utf-8-sig", errors="surrogateescape", newline="") as lines:
        header = lines.readline()
        # strict: a quote that nobody closes would make one value of all that follows
        reader = csv.DictReader(chain([header], lines), strict=True, **choose_form(header))
        names = list(reader.fieldnames or ())
        if len(set(names)) < len(names):  # a row would keep the last of them alone
            raise csv.Error(f"the first line has a column name twice: {', '.join(map(repr, names))}")
        for row in reader:
            yield reader.line_num, row


def choose_form(header: str) -> dict:
    """Keywords of csv.reader, by what the first line has outside of quotes: a tab, else what is most often there, or a
    comma; the spaces behind it belong to no value where they belong to no name.
    """
    names = re.sub('"[^"]*"', "", header)
    delimiter = "\t" if "\t" in names else max(",;|", key=names.count)
    marks, spaced = names.count(delimiter), names.count(f"{delimiter} ")
    return {"delimiter": delimiter, "skipinitialspace": 0 < marks == spaced}


def parse_row(row: dict) -> dict:
    if None in row or None in row.values():
        raise ValueError("not as many columns as the first line")
    return row
