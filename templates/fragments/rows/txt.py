def rows(file: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of the file, numbered."""
    with file.open("rb") as lines:
        yield from enumerate(lines, start=1)
