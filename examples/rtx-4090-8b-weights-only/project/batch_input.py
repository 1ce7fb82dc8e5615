"""The rows of a batch: read in the order of the file, one at a time, and none left out."""

import hashlib
import importlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from fields import list_columns

FORMATS = {".jsonl": "rows_jsonl", ".ndjson": "rows_jsonl", ".csv": "rows_csv", ".tsv": "rows_csv", ".txt": "rows_txt"}
"""The leaf that reads a file, by how its name ends; Parquet is read here, for its columns have types of their own."""
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
LINE = "line"
"""The column of an output row whose input was no row."""
BATCH_ROWS = 1000


@dataclass(frozen=True, slots=True)
class Row:
    """What a row of the input holds, or why it holds nothing that can be used."""

    number: int
    values: dict = field(default_factory=dict)
    problem: str | None = None
    size: int = 0


def choose_format(file: Path) -> str:
    """The suffix that says what the file holds. Ends the process where it is none that is read here."""
    suffixes = [suffix.lower() for suffix in file.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    if suffixes and suffixes[-1] in (*FORMATS, ".parquet"):
        return suffixes[-1]
    sys.exit(f"--input {file}: its name ends in none of {', '.join((*FORMATS, '.parquet'))} (.gz, .bz2, .xz or .zst)")


def check_input(file: Path) -> None:
    """Ends the process where there is no such file, or none that can be read."""
    try:
        if file.is_dir():
            sys.exit(f"--input {file} is a folder: name a file")
        once = file.is_fifo()  # to open one waits for who writes to it
        if not once:
            with file.open("rb") as stream:
                once = not stream.seekable()
        if once:
            sys.exit(f"--input {file} can be read only once: write it to a file, to be able to go on")
    except OSError as error:
        sys.exit(f"--input {file}: {error.strerror}")
    choose_format(file)


def read_rows(file: Path, columns: Iterable[str] | None = None, limit: int | None = None) -> Iterator[Row]:
    """Rows in order, numbered from 0; of Parquet ``columns`` alone. Ends the process where the file is damaged."""
    suffix = choose_format(file)
    if suffix == ".parquet":
        rows, parse, unreadable = read_parquet(file, columns), parse_plain, (OSError, ValueError)
    else:
        reader = importlib.import_module(FORMATS[suffix])
        rows, unreadable = reader.read_rows(file), reader.UNREADABLE
        parse = parse_plain if suffix == ".txt" else reader.parse_row
    try:
        for number, (_, raw) in enumerate(islice(rows, limit)):
            yield parse_checked(number, raw, parse)
    except unreadable as error:
        sys.exit(f"--input {file} cannot be read to its end: {' '.join(str(error).split())}")


def parse_plain(raw: bytes | dict) -> dict:
    """A line of a text file, and a row that is one already."""
    if isinstance(raw, dict):
        return raw
    return {"text": raw.decode("utf-8-sig").rstrip("\r\n")}


def parse_checked(number: int, raw, parse) -> Row:
    size = len(raw) if isinstance(raw, bytes) else measure_row(raw)
    try:
        return Row(number, parse(raw), None, size)
    except ValueError as error:
        text = raw.decode("utf-8", "backslashreplace").rstrip("\r\n") if isinstance(raw, bytes) else str(raw)
        return Row(number, {LINE: text}, f"no row: {error}", size)


def measure_row(row: dict) -> int:
    """Bytes, about; the same each time."""
    return sum(len(value) if isinstance(value, (str, bytes)) else len(str(value)) for value in row.values())


def read_parquet(file: Path, columns: Iterable[str] | None) -> Iterator[tuple[int, dict]]:
    parquet = open_parquet(file)
    names = None if columns is None else [name for name in parquet.schema_arrow.names if name in set(columns)]
    for batch in parquet.iter_batches(batch_size=BATCH_ROWS, columns=names):
        yield from ((0, row) for row in batch.to_pylist())


def choose_column(file: Path, asked: str | None, expected: tuple[str, ...]) -> str:
    """The column that is computed from: the flag's, or the only one of the ``expected`` names in the first row."""
    if choose_format(file) == ".parquet":
        names = open_parquet(file).schema_arrow.names
    else:
        first = next((row for row in read_rows(file, limit=BATCH_ROWS) if row.problem is None), None)
        names = list(first.values) if first else []
    usual = [name for name in expected if name in names] if asked is None else [asked]
    of_all = choose_format(file) not in (".jsonl", ".ndjson")  # whose rows may each have columns of their own
    if len(usual) == 1 and (usual[0] in names or not of_all):
        return usual[0]
    if not names:  # no row, or none that is one: each says so itself
        return asked or expected[0]
    wanted = " and ".join(usual) if usual else f"none of {', '.join(expected)}"
    problem = f"no column {asked!r}" if asked is not None else wanted
    sys.exit(f"--input {file}: {problem} among {list_columns(dict.fromkeys(names))}: --column says which it is")


def open_parquet(file: Path):
    """Ends the process where the file is no Parquet."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        sys.exit("Parquet is read and written with pyarrow, which is not installed here: pip install pyarrow")
    try:
        opened = pq.ParquetFile(file)
    except (OSError, pa.ArrowException) as error:
        sys.exit(f"--input {file}: {' '.join(str(error).split())}")
    names = opened.schema_arrow.names
    if twice := next((name for name in names if names.count(name) > 1), None):
        sys.exit(f"--input {file}: the column name {twice!r} stands there twice")
    return opened


def survey_rows(file: Path, limit: int | None, tell) -> dict:
    """How many rows there are, and a hash of them: a job that goes on needs the same. ``tell`` hears how far it is."""
    total, value = 0, hashlib.sha256()
    if choose_format(file) == ".parquet":
        total = open_parquet(file).metadata.num_rows
        with file.open("rb") as stream:
            while part := stream.read(1 << 20):
                value.update(part)
        return {"rows": total if limit is None else min(total, limit), "sha256": value.hexdigest()}
    reader = importlib.import_module(FORMATS[choose_format(file)])
    try:
        for _, raw in islice(reader.read_rows(file), limit):
            value.update(raw if isinstance(raw, bytes) else repr(raw).encode("utf-8", "backslashreplace"))
            total += 1
            if not total % BATCH_ROWS:
                tell(total)
    except reader.UNREADABLE as error:
        sys.exit(f"--input {file} cannot be read to its end: {' '.join(str(error).split())}")
    return {"rows": total, "sha256": value.hexdigest()}


def cut_shards(rows: Iterable[Row], most_rows: int, most_bytes: int) -> Iterator[list[Row]]:
    """Neighbours that are computed together: so many rows, fewer where they are long. Same rows, same shards."""
    shard: list[Row] = []
    size = 0
    for row in rows:
        if shard and (len(shard) >= most_rows or size + row.size > most_bytes):
            yield shard
            shard, size = [], 0
        shard.append(row)
        size += row.size
    if shard:
        yield shard
