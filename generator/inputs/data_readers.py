"""Rows of data files, format by format, bad ones named."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from generator.errors import SourceError


@dataclass(slots=True)
class Lengths:
    """How much of the data there is and how much of it was read: bytes, or the rows of parquet files."""

    total: int = 0
    seen: int = 1
    unit: str = "bytes"

    def note(self) -> tuple[str, ...]:
        return (f"looked at {self.seen:,} of {self.total:,} {self.unit} of the data",) if self.seen < self.total else ()


def read_json_rows(files: list[Path], lengths: Lengths) -> Iterator[tuple[str, dict | str]]:
    lengths.total = sum(file.stat().st_size for file in files)
    for where, line in sample_texts(files):
        lengths.seen += len(line)
        if isinstance(line, str):
            raise SourceError(f"{where}: {line}", "break it up")
        if line.strip(b" \t\r\n\xef\xbb\xbf"):
            yield where, parse_line(line)


def parse_line(line: bytes) -> dict | str:
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        return "not UTF-8"
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}"
    return row if isinstance(row, dict) else f"no object but {type(row).__name__}"


def read_csv_rows(files: list[Path], lengths: Lengths) -> Iterator[tuple[str, dict | str]]:
    lengths.total = sum(file.stat().st_size for file in files)
    csv.field_size_limit(SCAN_BYTES)
    for file in files:
        if lengths.seen >= SCAN_BYTES:
            return
        yield from read_csv_file(file, lengths)


def read_csv_file(file: Path, lengths: Lengths) -> Iterator[tuple[str, dict | str]]:
    def counted() -> Iterator[str]:
        with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as handle:
            while lengths.seen < SCAN_BYTES and (line := handle.readline(SCAN_BYTES)):
                if len(line) == SCAN_BYTES:
                    where = f"{file}, row {reader.line_num + 1}"
                    raise SourceError(f"{where}: longer than {SCAN_BYTES >> 20} MiB", "break it up")
                lengths.seen += len(line.encode(errors="surrogateescape"))
                yield line

    reader = csv.DictReader(counted(), strict=True)
    try:
        header = list(reader.fieldnames or ())
        wrong = find_header_fault(header)
        if wrong:
            raise SourceError(f"{file}, row 1: {wrong}", "mend the first line")
        for row in reader:
            yield f"{file}, row {reader.line_num}", check_csv_row(row, len(header))
    except csv.Error as error:
        if lengths.seen < SCAN_BYTES:  # else it is the row at which reading stopped
            raise SourceError(
                f"{file}, row {reader.line_num}: {error}", "mend the file: what follows cannot be read"
            ) from error


def find_header_fault(header: list[str]) -> str | None:
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        return f"the column name {twice[0]!r} stands there twice"
    return "not UTF-8" if any(HALF_PAIR.search(name) for name in header) else None


def check_csv_row(row: dict, columns: int) -> dict | str:
    if None in row or None in row.values():
        return f"the first line has {columns} columns, this one has another number"
    values = "".join(row.values())
    if HALF_PAIR.search(values):
        return "not UTF-8"
    return "a NUL byte: it is no text, or UTF-16" if "\0" in values else row


def read_parquet_rows(files: list[Path], lengths: Lengths) -> Iterator[tuple[str, dict | str]]:
    try:
        import pyarrow.parquet as pq
        from pyarrow import ArrowException
    except ImportError as error:
        raise SourceError(f"{files[0]}: reading parquet needs pyarrow", "pip install pyarrow") from error
    left, lengths.seen, lengths.unit = SCAN_BYTES, 0, "rows"
    for file in files:
        try:
            with pq.ParquetFile(file) as table:
                lengths.total += table.metadata.num_rows
                batches = table.iter_batches(256) if left > 0 else ()
                for number, row in enumerate((row for batch in batches for row in batch.to_pylist()), start=1):
                    lengths.seen += 1
                    yield f"{file}, row {number}", row
                    left -= len(str(row))
                    if left <= 0:
                        break
        except (ArrowException, OSError, UnicodeDecodeError) as error:
            raise SourceError(f"{file}: not a readable parquet file: {error}", "write it again") from error


READERS = {"jsonl": read_json_rows, "csv": read_csv_rows, "parquet": read_parquet_rows}


SCAN_BYTES = 32 << 20
"""How much of the data is looked at; the rest is extrapolated and said so."""


def sample_texts(files: list[Path]) -> Iterator[tuple[str, bytes | str]]:
    """The lines of the first ``SCAN_BYTES`` and where they are; text in place of a line that is longer than that."""
    left = SCAN_BYTES
    for file in files:
        with file.open("rb") as handle:
            number = 0
            while left > 0 and (line := handle.readline(SCAN_BYTES + 1)):
                number += 1
                left -= len(line)
                long = len(line) > SCAN_BYTES
                yield f"{file}, row {number}", f"longer than {SCAN_BYTES >> 20} MiB" if long else line


HALF_PAIR = re.compile("[\ud800-\udfff]")
