"""The rows of a Parquet file."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

UNREADABLE = (OSError, ValueError, OverflowError, pa.ArrowException)
"""Dates that Python does not have are the OverflowError."""
BATCH_BYTES, MOST_ROWS = 16 << 20, 1000
"""Of a file at once, in each process."""


def list_spans(file: Path) -> list[tuple[tuple[int, int], int]]:
    """Where the file can be divided: each of its row groups, with its bytes. A file that cannot be read is one piece:
    what is wrong is said where its rows are asked for."""
    try:
        metadata = pq.read_metadata(file)
    except UNREADABLE:
        return [((0, sys.maxsize), file.stat().st_size)]
    groups = range(metadata.num_row_groups)
    return [((group, group + 1), metadata.row_group(group).total_byte_size) for group in groups]


def read_schema(file: Path) -> pa.Schema:
    return pq.read_schema(file)


def read_rows(file: Path, span: tuple[int, int] = (0, sys.maxsize)) -> Iterator[tuple[int, dict]]:
    """The rows of the row groups in ``span``, numbered as in the whole file."""
    with pq.ParquetFile(file) as table:
        sizes = [table.metadata.row_group(group).num_rows for group in range(table.num_row_groups)]
        chosen = list(range(*span)[: len(sizes) - span[0]])
        batches = table.iter_batches(choose_batch_rows(table, chosen), row_groups=chosen) if chosen else ()
        first = 1 + sum(sizes[: span[0]])
        yield from enumerate((row for batch in batches for row in batch.to_pylist()), start=first)


def choose_batch_rows(table: pq.ParquetFile, groups: list[int]) -> int:
    """As many as ``BATCH_BYTES`` hold, by what the file says of all and by the first: equal values are stored once."""
    sizes = [table.metadata.row_group(group) for group in groups]
    stored = sum(group.total_byte_size for group in sizes) / max(1, sum(group.num_rows for group in sizes))
    first = next(table.iter_batches(1, row_groups=groups), None)
    return int(max(1, min(MOST_ROWS, BATCH_BYTES / max(1, stored, 0 if first is None else first.nbytes))))
