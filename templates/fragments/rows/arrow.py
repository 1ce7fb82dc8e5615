"""The rows of an Arrow file: what Dataset.save_to_disk and the cache of datasets hold."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

UNREADABLE = (OSError, ValueError, OverflowError, pa.ArrowException)
"""Dates that Python does not have are the OverflowError."""


def read_rows(file: Path) -> Iterator[tuple[int, dict]]:
    """The rows of the file, numbered."""
    with pa.memory_map(str(file)) as source:
        yield from enumerate((row for batch in open_batches(source) for row in batch.to_pylist()), start=1)


def read_schema(file: Path) -> pa.Schema:
    with pa.memory_map(str(file)) as source:
        return (pa.ipc.open_file if begins_with_mark(source) else pa.ipc.open_stream)(source).schema


def open_batches(source: pa.MemoryMappedFile) -> Iterator[pa.RecordBatch]:
    """Record batches of either of Arrow's two layouts: the stream, and the file."""
    if begins_with_mark(source):
        reader = pa.ipc.open_file(source)
        return (reader.get_batch(number) for number in range(reader.num_record_batches))
    return iter(pa.ipc.open_stream(source))


def begins_with_mark(source: pa.MemoryMappedFile) -> bool:
    """Whether it is Arrow's file layout."""
    mark = source.read(6)
    source.seek(0)
    return mark == b"ARROW1"
