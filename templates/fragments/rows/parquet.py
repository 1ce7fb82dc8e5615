def rows(file: Path) -> Iterator[tuple[int, dict]]:
    """The rows of the file, numbered."""
    batches = pq.ParquetFile(file).iter_batches(batch_size=1000)
    yield from enumerate((row for batch in batches for row in batch.to_pylist()), start=1)
