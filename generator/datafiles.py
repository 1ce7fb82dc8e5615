"""Reading the user's data files, as far as planning needs: columns, lengths, labels, and every row that cannot be used."""

from __future__ import annotations

import csv
import json
import re
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path

from generator.errors import SourceError
from generator.sources import is_hub_id

EXTENSIONS = {".jsonl": "jsonl", ".csv": "csv", ".parquet": "parquet", ".txt": "txt"}
SCAN_BYTES = 32 << 20
"""How much of the data is looked at; the rest is extrapolated and said so."""
SAMPLE_ROWS = 1000
"""How many rows tell the columns."""
CHARACTERS_A_TOKEN = 4.0
"""English text with the usual vocabularies (assumed; the run itself counts)."""
TEXT_COLUMNS = ("text", "content", "sentence", "document", "review")
LABEL_COLUMNS = ("label", "labels", "class", "category", "target")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """The data as found. ``sft_format``: messages, prompt_completion or text."""

    path: str
    format: str
    columns: tuple[str, ...] = ()
    text_column: str | None = None
    label_column: str | None = None
    sft_format: str | None = None
    rows: int | None = None
    tokens: int | None = None
    token_quantiles: tuple[float, ...] = ()
    """lengths of the rows in tokens (estimated from characters), 101 quantiles"""
    labels: int | None = None
    label_names: tuple[str, ...] = ()
    bad_rows: int = 0
    notes: tuple[str, ...] = ()


def read_data(
    source: str, *, task: str, text_column: str | None = None, label_column: str | None = None, skip_bad: bool = False
) -> DataSource:
    """A file, a folder of files of one kind, or a hub id. Raises ``SourceError`` naming the row."""
    path = Path(source)
    try:
        exists = path.exists()
    except (OSError, ValueError) as error:
        raise SourceError(f"--data {source!r}: {error}", "give a file, a folder or a hub id") from error
    if not exists:
        return hub_data(source, task, text_column, label_column)
    try:
        files = data_files(path)
        kind = EXTENSIONS[files[0].suffix.lower()]
        if kind == "txt":
            return text_data(path.resolve(), files, task, text_column)
        return table_data(path.resolve(), files, kind, task, text_column, label_column, skip_bad)
    except OSError as error:
        raise SourceError(f"--data {path}: {error.strerror or error}", "give files that you may read") from error


def data_files(path: Path) -> list[Path]:
    if path.is_file():
        if path.suffix.lower() not in EXTENSIONS:
            hint = f"jq -c '.[]' {path} > {path}l" if path.suffix == ".json" else f"use {', '.join(EXTENSIONS)}"
            raise SourceError(f"--data {path}: {path.suffix or 'no ending'} is not read", hint)
        return [path]
    files = sorted(p for p in path.rglob("*") if p.suffix.lower() in EXTENSIONS and p.is_file())
    if not files:
        raise SourceError(f"--data {path} holds no {', '.join(EXTENSIONS)} file", "give a folder with data")
    kinds = sorted({p.suffix.lower() for p in files})
    if len(kinds) > 1:
        raise SourceError(f"--data {path} mixes {', '.join(kinds)}", "give a folder with files of one kind")
    return files


def hub_data(source: str, task: str, text_column: str | None, label_column: str | None) -> DataSource:
    if not is_hub_id(source) or source.endswith(tuple(EXTENSIONS)):
        raise SourceError(f"--data {source!r} is no file, no folder and no hub id", "check the path")
    messages = task == "sft" and text_column is None
    return DataSource(
        path=source,
        format="hub",
        text_column=text_column or ("messages" if messages else "text"),
        label_column=label_column or ("label" if task == "text-classification" else None),
        sft_format=None if task != "sft" else "messages" if messages else "text",
        notes=(f"{source} was not looked at: its columns and size are assumed",),
    )


def text_data(path: Path, files: list[Path], task: str, text_column: str | None) -> DataSource:
    if task != "causal-lm":
        raise SourceError(
            f"--data {path}: plain text has no {'labels' if 'class' in task else 'answers'}",
            f"--task {task} needs .jsonl, .csv or .parquet",
        )
    if text_column is not None:
        raise SourceError(
            f"--text-column {text_column!r}: --data {path} is plain text, without columns", "leave it out"
        )
    characters = 0
    for where, line in looked_at(files):
        if isinstance(line, str):
            raise SourceError(f"{where}: {line}", "break the line")
        try:
            characters += len(line.decode("utf-8-sig").strip())
        except UnicodeDecodeError as error:
            raise SourceError(f"{where}: not UTF-8 ({error.reason})", "convert it: iconv -f latin1 -t utf-8") from error
        if b"\0" in line:
            raise SourceError(f"{where}: holds a NUL byte: it is no text, or UTF-16", "convert it: iconv -t utf-8")
    if not characters:
        raise SourceError(f"--data {path} holds no text", "give a file with text")
    size = sum(f.stat().st_size for f in files)
    return DataSource(path=str(path), format="txt", rows=len(files), tokens=int(size / CHARACTERS_A_TOKEN))


def looked_at(files: list[Path]) -> Iterator[tuple[str, bytes | str]]:
    """The lines of the first ``SCAN_BYTES`` and where they are; text in place of a line that is longer than that."""
    left = SCAN_BYTES
    for file in files:
        with file.open("rb") as handle:
            number = 0
            while left > 0 and (line := handle.readline(SCAN_BYTES + 1)):
                number += 1
                left -= len(line)
                long = len(line) > SCAN_BYTES
                yield f"{file}, row {number}", f"longer than {SCAN_BYTES >> 20} MiB" if long else line


@dataclass(slots=True)
class Scan:
    """What one pass over the rows adds up; rows themselves are not kept."""

    skip_bad: bool
    characters: array = field(default_factory=lambda: array("L"))
    """of each usable row"""
    bad_rows: int = 0
    first_bad: str = ""
    labels: set[str] = field(default_factory=set)

    def reject(self, what: str) -> None:
        if not self.skip_bad:
            raise SourceError(what, "mend the row, or leave out such rows with --skip-bad")
        self.bad_rows += 1
        self.first_bad = self.first_bad or what


def table_data(
    path: Path,
    files: list[Path],
    kind: str,
    task: str,
    text_column: str | None,
    label_column: str | None,
    skip_bad: bool,
) -> DataSource:
    """Rows with columns: which hold what, and how long they are. Raises ``SourceError`` naming the row."""
    scan, lengths = Scan(skip_bad), Lengths()
    rows = good_rows(READERS[kind](files, lengths), scan)
    sample = list(islice(rows, SAMPLE_ROWS))
    if not sample:
        raise SourceError(f"--data {path} holds no usable row" + said_first(scan), "give a file with data")
    columns = tuple(dict.fromkeys(str(key) for _, row in sample for key in row))
    form, text, label = choose(path, task, [row for _, row in sample], columns, text_column, label_column)
    for where, row in chain(sample, rows):
        wrong = unusable(row, form, text, label)
        if wrong:
            scan.reject(f"{where}: {wrong}")
            continue
        scan.characters.append(length_of(row, form, text))
        if label:
            scan.labels.add(str(row[label]))
    if not scan.characters:
        raise SourceError(f"--data {path} holds no usable row" + said_first(scan), "give a file with data")
    if label and len(scan.labels) < 2:
        raise SourceError(
            f"--data {path}: every row has the label {min(scan.labels)!r}", "give data with two classes or more"
        )
    seen = len(scan.characters)
    rows_in_all = round(seen * max(1.0, lengths.whole / lengths.seen))
    mean = sum(scan.characters) / seen / CHARACTERS_A_TOKEN
    return DataSource(
        path=str(path),
        format=kind,
        columns=columns,
        text_column=text,
        label_column=label,
        sft_format=form if task == "sft" else None,
        rows=rows_in_all,
        tokens=round(rows_in_all * mean),
        token_quantiles=quantiles([n / CHARACTERS_A_TOKEN for n in scan.characters]),
        labels=len(scan.labels) or None,
        label_names=tuple(sorted(scan.labels)),
        bad_rows=scan.bad_rows,
        notes=(*left_out(scan), *lengths.note()),
    )


def said_first(scan: Scan) -> str:
    return f"; the first: {scan.first_bad}" if scan.first_bad else ""


def left_out(scan: Scan) -> tuple[str, ...]:
    return (f"{scan.bad_rows} bad rows are left out, the first: {scan.first_bad}",) if scan.bad_rows else ()


@dataclass(slots=True)
class Lengths:
    """How much of the data there is and how much of it was read: bytes, or the rows of parquet files."""

    whole: int = 0
    seen: int = 1
    unit: str = "bytes"

    def note(self) -> tuple[str, ...]:
        return (f"looked at {self.seen:,} of {self.whole:,} {self.unit} of the data",) if self.seen < self.whole else ()


def good_rows(found: Iterable[tuple[str, dict | str]], scan: Scan) -> Iterator[tuple[str, dict]]:
    for where, row in found:
        if isinstance(row, dict):
            yield where, row
        else:
            scan.reject(f"{where}: {row}")


def choose(
    path: Path, task: str, sample: list[dict], columns: tuple[str, ...], text: str | None, label: str | None
) -> tuple[str, str, str | None]:
    """The form of a row, its text column and its label column. Raises ``SourceError``."""
    named = ", ".join(map(repr, columns[:50])) or "no columns"
    for asked, option in ((text, "--text-column"), (label, "--label-column")):
        if asked is not None and asked not in columns:
            raise SourceError(f"{option} {asked!r}: --data {path} has {named}", "name one of these")
    if task == "text-classification":
        label = label or pick(LABEL_COLUMNS, columns)
        if label is None:
            raise SourceError(f"--data {path}: no label among {named}", "name it: --label-column")

    def listed(column: str) -> bool:
        return any(isinstance(row.get(column), list) for row in sample)

    if task == "sft" and text is None:
        messages = next((c for c in ("messages", "conversations") if c in columns and listed(c)), None)
        if messages:
            return "messages", messages, None
        if "prompt" in columns and "completion" in columns:
            return "prompt_completion", "prompt", None
    text = text or pick(TEXT_COLUMNS, columns)
    if text is None:
        raise SourceError(f"--data {path}: no text among {named}", "name it: --text-column")
    return "messages" if task == "sft" and listed(text) else "text", text, label if "class" in task else None


def quantiles(values: list[float]) -> tuple[float, ...]:
    ordered = sorted(values)
    return tuple(round(ordered[round(share / 100 * (len(ordered) - 1))], 1) for share in range(101))


def pick(usual: tuple[str, ...], columns: tuple[str, ...]) -> str | None:
    return next((name for name in usual if name in columns), None)


def unusable(row: dict, form: str, text: str, label: str | None) -> str | None:
    """What the project's data.py would say of the row; the two are compared in a test."""
    if label is not None and (not isinstance(row.get(label), (str, int)) or row[label] == ""):
        return f"no label in column {label!r}, only {', '.join(map(repr, row))}"
    if form != "messages":
        return no_text(row, text) or (no_text(row, "completion") if form == "prompt_completion" else None)
    messages = row.get(text)
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        return f"no list of messages in column {text!r}"
    wrong = next((w for m in messages for w in (no_text(m, "role"), no_text(m, "content")) if w), None)
    if wrong is None and not any(m["role"] == "assistant" for m in messages):
        return "no message of the assistant to learn from"
    return wrong


def no_text(row: dict, column: str) -> str | None:
    text = row.get(column)
    if not isinstance(text, str) or not text.strip():
        return f"no usable text in column {column!r}"
    return "half a surrogate pair" if HALF_PAIR.search(text) else None


HALF_PAIR = re.compile("[\ud800-\udfff]")


def length_of(row: dict, form: str, text: str) -> int:
    """Characters of one usable row."""
    if form == "messages":
        return sum(len(message["content"]) for message in row[text])
    return len(row[text]) + (len(row["completion"]) if form == "prompt_completion" else 0)


# ---- the files: where a row is, and the row; text in place of a row says what is wrong with it


def json_rows(files: list[Path], lengths: Lengths) -> Iterator[tuple[str, dict | str]]:
    lengths.whole = sum(file.stat().st_size for file in files)
    for where, line in looked_at(files):
        lengths.seen += len(line)
        if isinstance(line, str):
            raise SourceError(f"{where}: {line}", "break it up")
        if line.strip(b" \t\r\n\xef\xbb\xbf"):
            yield where, parsed(line)


def parsed(line: bytes) -> dict | str:
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        return "not UTF-8"
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}"
    return row if isinstance(row, dict) else f"no object but {type(row).__name__}"


def csv_rows(files: list[Path], lengths: Lengths) -> Iterator[tuple[str, dict | str]]:
    lengths.whole = sum(file.stat().st_size for file in files)
    csv.field_size_limit(SCAN_BYTES)
    for file in files:
        if lengths.seen >= SCAN_BYTES:
            return
        yield from rows_of_csv(file, lengths)


def rows_of_csv(file: Path, lengths: Lengths) -> Iterator[tuple[str, dict | str]]:
    def counted() -> Iterator[str]:
        with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as handle:
            while lengths.seen < SCAN_BYTES and (line := handle.readline(SCAN_BYTES)):
                if len(line) == SCAN_BYTES:
                    where = f"{file}, row {reader.line_num + 1}"
                    raise SourceError(f"{where}: longer than {SCAN_BYTES >> 20} MiB", "break it up")
                lengths.seen += len(line.encode(errors="surrogateescape"))
                yield line

    reader = csv.DictReader(counted(), strict=True)
    try:
        header = list(reader.fieldnames or ())
        wrong = header_fault(header)
        if wrong:
            raise SourceError(f"{file}, row 1: {wrong}", "mend the first line")
        for row in reader:
            yield f"{file}, row {reader.line_num}", row_of_csv(row, len(header))
    except csv.Error as error:
        if lengths.seen < SCAN_BYTES:  # else it is the row at which reading stopped
            raise SourceError(
                f"{file}, row {reader.line_num}: {error}", "mend the file: what follows cannot be read"
            ) from error


def header_fault(header: list[str]) -> str | None:
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        return f"the column name {twice[0]!r} stands there twice"
    return "not UTF-8" if any(HALF_PAIR.search(name) for name in header) else None


def row_of_csv(row: dict, columns: int) -> dict | str:
    if None in row or None in row.values():
        return f"the first line has {columns} columns, this one has another number"
    values = "".join(row.values())
    if HALF_PAIR.search(values):
        return "not UTF-8"
    return "a NUL byte: it is no text, or UTF-16" if "\0" in values else row


def parquet_rows(files: list[Path], lengths: Lengths) -> Iterator[tuple[str, dict | str]]:
    try:
        import pyarrow.parquet as pq
        from pyarrow import ArrowException
    except ImportError as error:
        raise SourceError(f"{files[0]}: reading parquet needs pyarrow", "pip install pyarrow") from error
    left, lengths.seen, lengths.unit = SCAN_BYTES, 0, "rows"
    for file in files:
        try:
            with pq.ParquetFile(file) as table:
                lengths.whole += table.metadata.num_rows
                batches = table.iter_batches(256) if left > 0 else ()
                for number, row in enumerate((row for batch in batches for row in batch.to_pylist()), start=1):
                    lengths.seen += 1
                    yield f"{file}, row {number}", row
                    left -= len(str(row))
                    if left <= 0:
                        break
        except (ArrowException, OSError, UnicodeDecodeError) as error:
            raise SourceError(f"{file}: not a readable parquet file: {error}", "write it again") from error


READERS = {"jsonl": json_rows, "csv": csv_rows, "parquet": parquet_rows}
