"""The rows of a Parquet file."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq


def read_rows(file: Path) -> Iterator[tuple[int, dict]]:
    """The rows of the file, numbered."""
    batches = pq.ParquetFile(file).iter_batches(batch_size=1000)
    yield from enumerate((row for batch in batches for row in batch.to_pylist()), start=1)
