"""The rows of a Parquet file."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

UNREADABLE = (OSError, ValueError, OverflowError, pa.ArrowException)
"""Dates that Python does not have are the OverflowError."""


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
        batches = table.iter_batches(batch_size=1000, row_groups=chosen)
        first = 1 + sum(sizes[: span[0]])
        yield from enumerate((row for batch in batches for row in batch.to_pylist()), start=first)
