"""Rows of data files, format by format, bad ones named."""

from __future__ import annotations

import csv
import io
import json
import lzma
import re
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from generator.errors import SourceError, quote_error
from generator.inputs.leaves import load_choose_form, load_list_rows, load_open_batches, load_open_data

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile


@dataclass(slots=True)
class Lengths:
    """How much of the data there is and how much of it was read: bytes, or the rows of parquet files.

    ``decompressed`` counts the bytes that came out of files, of which ``seen`` were read on the disk.
    """

    total: int = 0
    seen: int = 1
    unit: str = "bytes"
    decompressed: int = 0

    def estimate_bytes(self) -> int:
        """Bytes of all files, decompressed."""
        return round(self.decompressed * max(1.0, self.total / self.seen))

    def note(self) -> tuple[str, ...]:
        return (f"looked at {self.seen:,} of {self.total:,} {self.unit} of the data",) if self.seen < self.total else ()


def find_ending(path: Path) -> tuple[str, str]:
    """The ending that says what a file holds, and the one that says how it is compressed, or none."""
    name, compression = path.name.lower(), ""
    for ending in load_open_data().OPENERS:
        if name.endswith(ending):
            name, compression = name.removesuffix(ending), ending
    return Path(name).suffix, compression


@contextmanager
def open_counted(file: Path, lengths: Lengths) -> Generator[BinaryIO]:
    """The bytes of a file, decompressed; bytes of a compressed one are counted as they are read on the disk.

    Raises ``SourceError`` where what is compressed is damaged, or nothing is installed that reads it.
    """
    compression = find_ending(file)[1]
    if not compression:
        with file.open("rb") as handle:
            yield handle
        return
    before = lengths.seen
    with file.open("rb") as raw:
        try:
            with load_open_data().OPENERS[compression](raw, "rb") as handle:
                yield handle
        except ImportError as error:
            raise SourceError(f"{file}: reading {compression} needs pyarrow", "pip install pyarrow") from error
        except (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError) as error:
            raise SourceError(f"{file}: cannot be decompressed: {quote_error(error)}", "compress it again") from error
        finally:
            lengths.seen = before + (file.stat().st_size if raw.closed else raw.tell())


def is_json_lines(file: Path) -> bool:
    """Whether a .json holds one object a line: its first line is an object, and there is another."""
    lines, left = [], SCAN_BYTES  # a small compressed file may hold any amount of nothing
    with open_counted(file, Lengths()) as handle:
        while len(lines) < 2 and (line := handle.readline(left)):
            left -= len(line)
            lines += [line] if line.strip(b" \t\r\n\xef\xbb\xbf") else []
    return len(lines) == 2 and isinstance(parse_line(lines[0]), dict)


def read_json_rows(files: list[Path], lengths: Lengths) -> Iterator[tuple[str, dict | str]]:
    for where, line in sample_texts(files, lengths):
        if isinstance(line, str):
            raise SourceError(f"{where}: {line}", "break it up")
        if line.strip(b" \t\r\n\xef\xbb\xbf"):
            yield where, parse_line(line)


def read_json_documents(files: list[Path], lengths: Lengths) -> Iterator[tuple[str, dict | str]]:
    """The rows of files that are one JSON document each: of the first, and of others as long as there is room."""
    lengths.total, lengths.seen = sum(file.stat().st_size for file in files), 0
    left = SCAN_BYTES
    for file in files:
        if left <= 0:
            return
        with file.open("rb") if not find_ending(file)[1] else open_counted(file, Lengths()) as handle:
            content = handle.read(MAX_DOCUMENT + 1)
        if len(content) > MAX_DOCUMENT:
            raise SourceError(
                f"{file}: a JSON document of more than {MAX_DOCUMENT >> 20} MiB",
                f"write a row a line: jq -c '.[]' {file} > {file.name.partition('.')[0]}.jsonl",
            )
        lengths.seen += file.stat().st_size
        left -= len(content)
        try:
            document = json.loads(content.decode("utf-8-sig"), object_pairs_hook=load_open_data().make_object)
            rows = load_list_rows()(document)
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise SourceError(f"{file}, line {line}: {NOT_UTF8}", "mend the file") from error
        except (ValueError, RecursionError) as error:
            raise SourceError(f"{file}: {quote_error(error)}", "mend the file") from error
        for number, row in enumerate(rows, start=1):
            yield f"{file}, row {number}", check_row(row)


def parse_line(line: bytes) -> dict | str:
    try:
        row = json.loads(line.decode("utf-8-sig"), object_pairs_hook=load_open_data().make_object)
    except UnicodeDecodeError:
        return NOT_UTF8
    except (json.JSONDecodeError, RecursionError) as error:
        return f"not JSON: {error}"
    except ValueError as error:
        return str(error)
    return row if isinstance(row, dict) and load_open_data().has_few_brackets(line) else check_row(row)


def check_row(row: object) -> dict | str:
    """A row as data.py takes it, or why it does not."""
    if not isinstance(row, dict):
        return f"no object but {type(row).__name__}"
    try:
        return load_open_data().check_nesting(row)
    except ValueError as error:
        return str(error)


def read_csv_rows(files: list[Path], lengths: Lengths) -> Iterator[tuple[str, dict | str]]:
    lengths.total = sum(file.stat().st_size for file in files)
    csv.field_size_limit(SCAN_BYTES)
    for file in files:
        if lengths.decompressed >= SCAN_BYTES:
            return
        yield from read_csv_file(file, lengths)


def read_csv_file(file: Path, lengths: Lengths) -> Iterator[tuple[str, dict | str]]:
    compression = find_ending(file)[1]

    def count_lines(handle: BinaryIO) -> Iterator[str]:
        text = io.TextIOWrapper(handle, encoding="utf-8", errors="surrogateescape", newline="")
        for number in count(1):
            line = text.readline(SCAN_BYTES) if lengths.decompressed < SCAN_BYTES else ""
            if not line:
                return
            if len(line) == SCAN_BYTES:
                raise SourceError(f"{file}, row {number}: longer than {SCAN_BYTES >> 20} MiB", "break it up")
            size = len(line.encode(errors="surrogateescape"))
            lengths.decompressed += size
            lengths.seen += 0 if compression else size
            yield line.removeprefix("\ufeff") if number == 1 else line

    with open_counted(file, lengths) as handle:
        lines = count_lines(handle)
        header_line = next(lines, "")
        form = load_choose_form()(header_line)
        reader = csv.DictReader(chain([header_line], lines), strict=True, **form)
        try:
            header = list(reader.fieldnames or ())
            wrong = find_header_fault(header)
            if wrong:
                raise SourceError(f"{file}, row 1: {wrong}", "mend the first line")
            for row in reader:
                yield f"{file}, row {reader.line_num}", check_csv_row(row, len(header))
        except csv.Error as error:
            if lengths.decompressed < SCAN_BYTES:  # else it is the row at which reading stopped
                raise SourceError(
                    f"{file}, row {reader.line_num}: {quote_error(error)}", "mend the file: what follows cannot be read"
                ) from error


def find_header_fault(header: list[str]) -> str | None:
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        return f"the column name {twice[0]!r} stands there twice"
    return NOT_UTF8 if any(HALF_PAIR.search(name) for name in header) else None


def check_csv_row(row: dict, columns: int) -> dict | str:
    if None in row or None in row.values():
        return f"the first line has {columns} columns, this one has another number"
    values = "".join(row.values())
    if HALF_PAIR.search(values):
        return NOT_UTF8
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
                check_names(file, table.schema_arrow.names)
                lengths.total += table.metadata.num_rows
                batches = table.iter_batches(choose_batch_rows(table)) if left > 0 else ()
                for number, row in enumerate((row for batch in batches for row in batch.to_pylist()), start=1):
                    lengths.seen += 1
                    yield f"{file}, row {number}", row
                    left -= len(str(row))
                    if left <= 0:
                        break
        except (ArrowException, *UNREADABLE) as error:
            raise SourceError(f"{file}: not a readable parquet file: {quote_error(error)}", "write it again") from error


def choose_batch_rows(table: ParquetFile) -> int:
    """As many as ``BATCH_BYTES`` hold: by what the file says of all rows, and by the first, for equal values are stored once. A few
    kilobytes may hold terabytes; pictures have megabytes a row."""
    metadata = table.metadata
    stored = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    first = next(table.iter_batches(1), None)
    row_bytes = max(stored / max(metadata.num_rows, 1), first.nbytes if first is not None else 0, 1)
    return max(1, min(MOST_BATCH_ROWS, int(BATCH_BYTES / row_bytes)))


def check_names(file: Path, names: list[str]) -> None:
    """Raises ``SourceError`` for names that a row could not tell apart."""
    wrong = find_header_fault(names)
    if wrong:
        raise SourceError(f"{file}: {wrong}", "write it again with other names")


def read_arrow_rows(files: list[Path], lengths: Lengths) -> Iterator[tuple[str, dict | str]]:
    try:
        import pyarrow as pa

        open_batches = load_open_batches()
    except ImportError as error:
        raise SourceError(f"{files[0]}: reading arrow needs pyarrow", "pip install pyarrow") from error
    left, lengths.seen, lengths.unit = SCAN_BYTES, 0, "rows"
    for file in files:
        try:
            with pa.memory_map(str(file)) as source:
                number = 0
                for batch in open_batches(source):
                    check_names(file, batch.schema.names)
                    lengths.total += batch.num_rows
                    if left <= 0:
                        continue
                    left -= batch.nbytes
                    for row in batch.to_pylist():
                        number += 1
                        lengths.seen += 1
                        yield f"{file}, row {number}", row
        except (pa.ArrowException, *UNREADABLE) as error:
            raise SourceError(f"{file}: not a readable arrow file: {quote_error(error)}", "write it again") from error


READERS = {
    "jsonl": read_json_rows,
    "json": read_json_documents,
    "csv": read_csv_rows,
    "parquet": read_parquet_rows,
    "arrow": read_arrow_rows,
}


UNREADABLE = (OSError, ValueError, OverflowError)
"""what pyarrow raises beside its own: for bytes that are no text, and for dates that Python does not have"""
SCAN_BYTES = 32 << 20
"""How much of the data is looked at; the rest is extrapolated and said so."""
BATCH_BYTES, MOST_BATCH_ROWS = 16 << 20, 256
"""Of a Parquet file at once."""
MAX_DOCUMENT = 1 << 30
"""A JSON document is read as one: several times its size in memory, in the plan and in the run."""


def sample_texts(files: list[Path], lengths: Lengths) -> Iterator[tuple[str, bytes | str]]:
    """The lines of the first ``SCAN_BYTES`` and where they are; text in place of a line that is longer than that."""
    lengths.total = sum(file.stat().st_size for file in files)
    for file in files:
        compressed = bool(find_ending(file)[1])
        with open_counted(file, lengths) as handle:
            number = 0
            while lengths.decompressed < SCAN_BYTES and (line := handle.readline(SCAN_BYTES + 1)):
                number += 1
                lengths.decompressed += len(line)
                lengths.seen += 0 if compressed else len(line)
                long = len(line) > SCAN_BYTES
                yield f"{file}, row {number}", f"longer than {SCAN_BYTES >> 20} MiB" if long else line


NOT_UTF8 = "not UTF-8, to which `iconv -t utf-8 -f latin1` turns a file (UTF-16: -f utf-16)"
HALF_PAIR = re.compile("[\ud800-\udfff]")
