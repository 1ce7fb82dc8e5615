"""--data: which files, which columns, how long the texts are."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path

from generator.errors import SourceError
from generator.inputs.data_readers import HALF_PAIR, READERS, Lengths, sample_texts
from generator.inputs.hub import is_hub_id

EXTENSIONS = {".jsonl": "jsonl", ".csv": "csv", ".parquet": "parquet", ".txt": "txt"}
SAMPLE_ROWS = 1000
"""How many rows tell the columns."""
CHARACTERS_A_TOKEN = 4.0
"""English text with the usual vocabularies (assumed; the run itself counts)."""
TEXT_COLUMNS = ("text", "content", "sentence", "document", "review")
LABEL_COLUMNS = ("label", "labels", "class", "category", "target")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """The data as its files show it. ``sft_format``: messages, prompt_completion or text."""

    path: str
    format: str
    columns: tuple[str, ...] = ()
    text_column: str | None = None
    label_column: str | None = None
    sft_format: str | None = None
    rows: int | None = None
    tokens: int | None = None
    token_quantiles: tuple[float, ...] = ()
    """lengths of the rows in tokens, 101 quantiles; ``lengths_counted``: with the tokenizer, else from characters"""
    length_source: str = f"{CHARACTERS_A_TOKEN:g} characters a token, assumed"
    lengths_counted: bool = False
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
        return describe_hub_data(source, task, text_column, label_column)
    try:
        files = list_data_files(path)
        kind = EXTENSIONS[files[0].suffix.lower()]
        if kind == "txt":
            return describe_text_data(path.resolve(), files, task, text_column)
        return describe_table_data(path.resolve(), files, kind, task, text_column, label_column, skip_bad)
    except OSError as error:
        raise SourceError(f"--data {path}: {error.strerror or error}", "give files that you may read") from error


def list_data_files(path: Path) -> list[Path]:
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


def describe_hub_data(source: str, task: str, text_column: str | None, label_column: str | None) -> DataSource:
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


def describe_text_data(path: Path, files: list[Path], task: str, text_column: str | None) -> DataSource:
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
    for where, line in sample_texts(files):
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


def describe_table_data(
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
    rows = keep_good_rows(READERS[kind](files, lengths), scan)
    sample = list(islice(rows, SAMPLE_ROWS))
    if not sample:
        raise SourceError(f"--data {path} holds no usable row" + show_first_fault(scan), "give a file with data")
    columns = tuple(dict.fromkeys(str(key) for _, row in sample for key in row))
    form, text, label = choose_columns(path, task, [row for _, row in sample], columns, text_column, label_column)
    for where, row in chain(sample, rows):
        wrong = explain_unusable(row, form, text, label)
        if wrong:
            scan.reject(f"{where}: {wrong}")
            continue
        scan.characters.append(measure_length(row, form, text))
        if label:
            scan.labels.add(str(row[label]))
    if not scan.characters:
        raise SourceError(f"--data {path} holds no usable row" + show_first_fault(scan), "give a file with data")
    if label and len(scan.labels) < 2:
        raise SourceError(
            f"--data {path}: every row has the label {min(scan.labels)!r}", "give data with two classes or more"
        )
    seen = len(scan.characters)
    rows_in_all = round(seen * max(1.0, lengths.total / lengths.seen))
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
        token_quantiles=compute_quantiles([n / CHARACTERS_A_TOKEN for n in scan.characters]),
        labels=len(scan.labels) or None,
        label_names=tuple(sorted(scan.labels)),
        bad_rows=scan.bad_rows,
        notes=(*note_skipped_rows(scan), *lengths.note()),
    )


def show_first_fault(scan: Scan) -> str:
    return f"; the first: {scan.first_bad}" if scan.first_bad else ""


def note_skipped_rows(scan: Scan) -> tuple[str, ...]:
    return (f"{scan.bad_rows} bad rows are left out, the first: {scan.first_bad}",) if scan.bad_rows else ()


def keep_good_rows(rows: Iterable[tuple[str, dict | str]], scan: Scan) -> Iterator[tuple[str, dict]]:
    for where, row in rows:
        if isinstance(row, dict):
            yield where, row
        else:
            scan.reject(f"{where}: {row}")


def choose_columns(
    path: Path, task: str, sample: list[dict], columns: tuple[str, ...], text: str | None, label: str | None
) -> tuple[str, str, str | None]:
    """The form of a row, its text column and its label column. Raises ``SourceError``."""
    named = ", ".join(map(repr, columns[:50])) or "no columns"
    for asked, option in ((text, "--text-column"), (label, "--label-column")):
        if asked is not None and asked not in columns:
            raise SourceError(f"{option} {asked!r}: --data {path} has {named}", "name one of these")
    if task == "text-classification":
        label = label or pick_column(LABEL_COLUMNS, columns)
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
    text = text or pick_column(TEXT_COLUMNS, columns)
    if text is None:
        raise SourceError(f"--data {path}: no text among {named}", "name it: --text-column")
    return "messages" if task == "sft" and listed(text) else "text", text, label if "class" in task else None


def compute_quantiles(values: list[float]) -> tuple[float, ...]:
    ordered = sorted(values)
    return tuple(round(ordered[round(share / 100 * (len(ordered) - 1))], 1) for share in range(101))


def pick_column(usual: tuple[str, ...], columns: tuple[str, ...]) -> str | None:
    return next((name for name in usual if name in columns), None)


def explain_unusable(row: dict, form: str, text: str, label: str | None) -> str | None:
    """What the project's data.py would say of the row; the two are compared in a test."""
    if label is not None and (not isinstance(row.get(label), (str, int)) or row[label] == ""):
        return f"no label in column {label!r}, only {', '.join(map(repr, row))}"
    if form != "messages":
        return explain_missing_text(row, text) or (
            explain_missing_text(row, "completion") if form == "prompt_completion" else None
        )
    messages = row.get(text)
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        return f"no list of messages in column {text!r}"
    wrong = next(
        (w for m in messages for w in (explain_missing_text(m, "role"), explain_missing_text(m, "content")) if w), None
    )
    if wrong is None and not any(m["role"] == "assistant" for m in messages):
        return "no message of the assistant to learn from"
    return wrong


def explain_missing_text(row: dict, column: str) -> str | None:
    text = row.get(column)
    if not isinstance(text, str) or not text.strip():
        return f"no usable text in column {column!r}"
    return "half a surrogate pair" if HALF_PAIR.search(text) else None


def measure_length(row: dict, form: str, text: str) -> int:
    """Characters of one usable row."""
    if form == "messages":
        return sum(len(message["content"]) for message in row[text])
    return len(row[text]) + (len(row["completion"]) if form == "prompt_completion" else 0)
