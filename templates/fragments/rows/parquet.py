"""The rows of a Parquet file."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

UNREADABLE = (OSError, ValueError, OverflowError, pa.ArrowException)
"""Dates that Python does not have are the OverflowError."""


def read_rows(file: Path) -> Iterator[tuple[int, dict]]:
    """The rows of the file, numbered."""
    batches = pq.ParquetFile(file).iter_batches(batch_size=1000)
    yield from enumerate((row for batch in batches for row in batch.to_pylist()), start=1)
