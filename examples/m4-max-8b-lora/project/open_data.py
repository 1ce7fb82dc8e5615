"""Files of data, compressed or not."""

import bz2
import gzip
import io
import lzma
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def open_zstd(file: BinaryIO | Path, mode: str) -> io.BufferedReader:
    import pyarrow as pa

    return io.BufferedReader(pa.input_stream(str(file) if isinstance(file, Path) else file, compression="zstd"))


UNREADABLE = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError)
"""What reading a file raises that is damaged, or gone since it was listed."""
OPENERS = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": open_zstd}


def open_data(file: Path) -> io.BufferedReader:
    """The bytes of a file, decompressed if its name says so."""
    return io.BufferedReader(OPENERS.get(file.suffix.lower(), open)(file, "rb"))


def make_object(pairs: list[tuple[str, object]]) -> dict:
    """Of JSON, for ``object_pairs_hook``. ValueError for a key that stands there twice: a value would be lost."""
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"an object has {next(name for name in names if names.count(name) > 1)!r} twice")
    return row


MOST_NESTED = 100
"""Levels of a row: to write it again takes more of Python's stack than reading it did, and tables hold fewer still."""


def check_nesting(row: dict) -> dict:
    """ValueError for a row that nests deeper."""
    if is_nested(row, MOST_NESTED):
        raise ValueError(f"it nests deeper than {MOST_NESTED} levels")
    return row


def has_few_brackets(line: bytes) -> bool:
    """Whether nothing deep can be made of a line: most are not looked into for it."""
    return line.count(b"[") + line.count(b"{") <= MOST_NESTED


def is_nested(value: object, levels: int) -> bool:
    """Whether more lists and objects than so many stand one in the other."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(levels):
        items = (part.values() if isinstance(part, dict) else part for part in level)
        level = [item for part in items for item in part if isinstance(item, (dict, list))]
    return bool(level)


SPAN_BYTES = 8 << 20
"""Of lines that are read by one process."""


def list_spans(file: Path) -> list[tuple[tuple[int, int], int]]:
    """Where the lines of a file can be divided: begin and end in bytes, and how many. A packed one is one piece."""
    size = file.stat().st_size
    if file.suffix.lower() in OPENERS:
        return [((0, sys.maxsize), size)]
    spans = [(start, min(start + SPAN_BYTES, size)) for start in range(0, size, SPAN_BYTES)]
    return [((start, end), end - start) for start, end in spans]


def read_lines(file: Path, span: tuple[int, int] = (0, sys.maxsize)) -> Iterator[bytes]:
    """The lines that begin in ``span``."""
    start, end = span
    with open_data(file) as lines:
        if start:
            lines.seek(start - 1)
            start += skip_line(lines, end - start) - 1
        while start < end and (line := lines.readline()):
            start += len(line)
            yield line


def skip_line(lines: io.BufferedReader, most: int) -> int:
    """How many bytes the rest of a line has, or ``most`` at least: a file may be a single line."""
    skipped = 0
    while skipped <= most and (piece := lines.readline(1 << 20)):
        skipped += len(piece)
        if piece.endswith(b"\n"):
            break
    return skipped


def count_lines(file: Path, end: int) -> int:
    """Those that begin before ``end``, a place at which a span begins."""
    return sum(1 for _ in read_lines(file, (0, end)))
