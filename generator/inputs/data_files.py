"""--data: which files, what their rows are, how long the texts are."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, islice
from os.path import commonprefix
from pathlib import Path

from generator.errors import SourceError, UsageError
from generator.inputs.data_formats import NO_HINTS, Format, Hints, assume_format, describe_hint
from generator.inputs.data_readers import (
    READERS,
    Lengths,
    find_ending,
    is_json_lines,
    sample_texts,
)
from generator.inputs.data_recognition import LABEL_COLUMNS, recognise_format
from generator.inputs.hub_data import HubSample, fetch_sample
from generator.inputs.hub_ids import is_hub_id
from generator.inputs.hub_splits import list_splits
from generator.inputs.leaves import load_class_names, load_make_example, load_read_schema
from generator.inputs.local_files import make_absolute

EXTENSIONS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".txt": "txt",
}
BESIDE = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
"""What `datasets` writes beside the rows."""
SAMPLE_ROWS = 1000
"""How many rows tell the columns."""
BYTES_PER_TOKEN = 4.0
"""In UTF-8, with the usual vocabularies (assumed; the run itself counts): a letter of English is one byte, of Russian two, of Chinese
three. 27 characters of Chinese have 51 tokens of SmolLM2's and fewer of a tokenizer that was made for it: 20 by their bytes, 7 by their
number."""
TOKENS_PER_TURN = 5
"""What a chat template puts around a turn: two marks, the role, two line breaks (ChatML; the run itself counts)."""
TOKENS_FOR_TOOLS = 250
"""What a chat template says of tools beside their JSON, or adds to it by indenting: 106 to 236 tokens of Qwen2.5 to Qwen3.5, up to 290
of Llama 3.1 and Gemma 4 with six tools (measured on TRL's copies with SmolLM2's tokenizer; too few would cut the answers off)."""
TOKENS_PER_CONVERSATION = 25
"""What one may put before the first turn of a conversation without a system turn: Qwen2.5's default one, Llama 3.1's dates
(assumed; the run itself counts)."""


FEW_ROWS_PER_LABEL = 3
"""With fewer in the mean, it is said (ours)."""
LONGEST_NAME = 40
"""Characters of a column's name that nobody wonders at (ours)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """The data as its files show it. ``sft_format``: messages, prompt_completion or text."""

    path: str
    format: str
    columns: tuple[str, ...] = ()
    text_column: str | None = None
    label_column: str | None = None
    sft_format: str | None = None
    recognised: Format | None = None
    """what the rows are, and how that was seen"""
    endings: tuple[str, ...] = ()
    """of the files, as in .jsonl or .jsonl.gz"""
    rows: int | None = None
    tokens: int | None = None
    token_quantiles: tuple[float, ...] = ()
    """lengths of what is trained on in tokens, 101 quantiles; ``lengths_counted``: with the tokenizer, else from bytes"""
    length_source: str = f"{BYTES_PER_TOKEN:g} bytes a token, assumed"
    lengths_counted: bool = False
    lengths_exact: bool = False
    """``lengths_counted`` on every example; else on the first ones"""
    answer_share: float = 1.0
    """of the tokens, those of what the assistant says, or of completions, each with its end; 1 where that was not counted"""
    answer_starts: tuple[float, ...] = ()
    """tokens before the first answer, 101 quantiles of the examples that were counted; fewer where its words stand in the question too"""
    shared_tokens: int = 0
    """at the beginning of every example, the same and not learned from; 0 where that was not counted"""
    labels: int | None = None
    label_names: tuple[str, ...] = ()
    bad_rows: int = 0
    complete: bool = False
    """every row was looked at, and ``label_names`` are all"""
    config: str | None = None
    """of the hub, as are ``split`` and ``revision``; None: the only one, or seen when the project runs"""
    split: str | None = None
    revision: str | None = None
    notes: tuple[str, ...] = ()


def read_data(
    source: str,
    *,
    task: str,
    hints: Hints = NO_HINTS,
    skip_bad: bool = False,
    config: str | None = None,
    split: str | None = None,
    offline: bool = True,
) -> DataSource:
    """A file, a folder of files of one kind, or a hub id, with ``config`` and ``split``. Raises ``SourceError`` naming the row."""
    path = Path(source)
    try:
        exists = path.exists()
    except (OSError, ValueError) as error:
        raise SourceError(f"--data {source!r}: {error}", "give a file, a folder or a hub id") from error
    if not exists and not is_pattern(path):
        if not is_hub_id(source) or source.endswith(tuple(EXTENSIONS)):
            raise SourceError(f"--data {source!r} is no file, no folder and no hub id", "check the path")
        with fetch_sample(source, config, split, offline) as sample:
            return describe_hub_data(source, sample, task, hints, skip_bad)
    if config or split:
        raise UsageError(f"--data-config and --split are of hub data, and --data {source} is a path", "drop them")
    try:
        path, notes = choose_training_files(find_training_folder(path))
        files = list_data_files(path)
        reader = choose_reader(files)
        if reader == "txt":
            data = describe_text_data(make_absolute(path), files, task, hints)
        else:
            data = describe_table_data(make_absolute(path), files, reader, task, hints, skip_bad)
        return replace(data, notes=(*notes, *data.notes))
    except OSError as error:
        raise SourceError(f"--data {path}: {error.strerror or error}", "give files that you may read") from error


def find_training_folder(path: Path) -> Path:
    """The training split of what DatasetDict.save_to_disk wrote; any other path as it is."""
    if not (path / "dataset_dict.json").is_file():
        return path
    if (path / "train" / "dataset_info.json").is_file():
        return path / "train"
    splits = sorted(entry.name for entry in path.iterdir() if (entry / "dataset_info.json").is_file())
    raise SourceError(
        f"--data {path} has the splits {', '.join(splits) or 'none'}, no train", "give one of its folders"
    )


def is_pattern(path: Path) -> bool:
    """As in data/train-*.parquet."""
    return "*" in path.name and path.parent.is_dir()


def choose_training_files(path: Path) -> tuple[Path, tuple[str, ...]]:
    """Of a folder the part for training, where names of its files or folders say which that is, as `datasets` reads them; with
    a note of what is left aside. Any other path as it is. Raises ``SourceError`` where a part is for tests and none for training.
    """
    if not path.is_dir():
        return path, ()
    files = {file.relative_to(path).as_posix(): file for file in list_data_files(path)}
    splits = list_splits({}, list(files))
    named = {name for of_split in splits.values() for name in of_split}
    if len(splits) < 2 and ("train" in splits or named == set(files)):
        return path, ()
    aside = [split for split in splits if split != "train"]
    if "train" not in splits or named != set(files):
        left = sorted(set(files) - named)[:3]
        raise SourceError(
            f"--data {path} has the splits {', '.join(splits)}"
            + (f", and beside them {', '.join(left)}" if left else ""),
            "give the file or the folder to train on",
        )
    part = find_common_path(path, [files[name] for name in splits["train"]])
    return part, (
        f"{path} has the splits {', '.join(splits)}: {part.name} is trained on, {' and '.join(aside)} left aside",
    )


def find_common_path(folder: Path, files: list[Path]) -> Path:
    """A path that stands for these files and no others: a file, a folder, or a pattern. Raises ``SourceError``."""
    if len(files) == 1:
        return files[0]
    parent, names = files[0].parent, [file.name for file in files]
    ending = "".join(find_ending(files[0]))
    for path in (
        *reversed([p for p in parent.parents if folder in p.parents]),
        parent,
        parent / f"{commonprefix(names)}*{ending}",  # noqa: RUF071
    ):
        if path != folder and list_data_files(path) == sorted(files):
            return path
    raise SourceError(
        f"--data {folder}: the files to train on stand among others", "put them into a folder of their own"
    )


def list_data_files(path: Path) -> list[Path]:
    """A file, or those of a folder or a pattern; hidden ones, and what `datasets` writes beside the rows, are no data."""
    if path.is_file():
        if find_ending(path)[0] not in EXTENSIONS:
            raise SourceError(
                f"--data {path}: {path.suffix or 'no ending'} is not read", f"use {', '.join(EXTENSIONS)}"
            )
        return [path]
    if not is_pattern(path) and not path.is_dir():
        raise SourceError(f"--data {path} is no file and no folder, but a pipe or a device", "write it to a file first")
    folder, names = (path.parent, path.parent.glob(path.name)) if is_pattern(path) else (path, path.rglob("*"))
    files = [p for p in names if find_ending(p)[0] in EXTENSIONS and p.is_file() and p.name not in BESIDE]
    files = [p for p in files if not any(part.startswith(".") for part in p.relative_to(folder).parts)]
    if not files:
        raise SourceError(f"--data {path} holds no {', '.join(EXTENSIONS)} file", "give a folder with data")
    kinds = sorted({find_ending(p)[0] for p in files})
    if len(kinds) > 1:
        raise SourceError(f"--data {path} mixes {', '.join(kinds)}", "give a folder with files of one kind")
    return sorted(files)


def choose_reader(files: list[Path]) -> str:
    """By the ending; a .json may be JSON lines."""
    reader = EXTENSIONS[find_ending(files[0])[0]]
    return "jsonl" if reader == "json" and all(map(is_json_lines, files)) else reader


def list_endings(files: list[Path]) -> tuple[str, ...]:
    return tuple(sorted({"".join(find_ending(file)) for file in files}))


def describe_hub_data(source: str, sample: HubSample, task: str, hints: Hints, skip_bad: bool) -> DataSource:
    """By the rows of ``sample``; what nobody could look at is assumed."""
    part = {"config": sample.config, "split": sample.split, "revision": sample.revision}
    if sample.file is None:
        return replace(assume_hub_data(source, task, hints), rows=sample.rows, notes=sample.notes, **part)
    kind, file = sample.file.suffix.removeprefix("."), sample.file
    try:
        read = describe_table_data(file, [file], kind, task, hints, skip_bad)
    except SourceError as error:  # names the rows of the hub's file, not of a copy that is gone
        raise SourceError(error.message.replace(str(file), source), error.hint) from error
    rows = sample.rows or round((read.rows or 0) / sample.share)
    tokens = round((read.tokens or 0) * rows / (read.rows or 1))
    notes = (*sample.notes, *read.notes)
    return replace(read, path=source, format="hub", endings=(), rows=rows, tokens=tokens, notes=notes, **part)


def assume_hub_data(source: str, task: str, hints: Hints) -> DataSource:
    assumed = assume_format(task, hints)
    column_of = assumed.column_of
    return DataSource(
        path=source,
        format="hub",
        text_column=next((column_of[m] for m in ("text", "messages", "prompt") if m in column_of), None),
        label_column=column_of.get("label"),
        sft_format=assumed.form if task == "sft" else None,
        recognised=assumed,
    )


def describe_text_data(path: Path, files: list[Path], task: str, hints: Hints) -> DataSource:
    if task != "causal-lm":
        raise SourceError(
            f"--data {path}: plain text has no {'labels' if 'class' in task else 'answers'}",
            f"--task {task} needs rows: {', '.join(e for e, kind in EXTENSIONS.items() if kind != 'txt')}",
        )
    hints.check(task)
    if named := next(iter(hints.list_named()), None):
        raise SourceError(f"{describe_hint(*named)}: --data {path} is plain text, without columns", "leave it out")
    blank = True
    lengths = Lengths()
    for where, line in sample_texts(files, lengths):
        if isinstance(line, str):
            raise SourceError(f"{where}: {line}", "break the line")
        try:
            text = line.decode("utf-8-sig")
            blank = blank and not text.strip()
        except UnicodeDecodeError as error:
            raise SourceError(f"{where}: not UTF-8 ({error.reason})", "convert it: iconv -f latin1 -t utf-8") from error
        if b"\0" in line:
            raise SourceError(f"{where}: holds a NUL byte: it is no text, or UTF-16", "convert it: iconv -t utf-8")
    if blank:
        raise SourceError(f"--data {path} holds no text", "give a file with text")
    return DataSource(
        path=str(path),
        format="txt",
        endings=list_endings(files),
        rows=len(files),
        tokens=int(lengths.estimate_bytes() / BYTES_PER_TOKEN),
        notes=lengths.note() if any(find_ending(file)[1] for file in files) else (),
    )


@dataclass(slots=True)
class Scan:
    """What one pass over the rows adds up; rows themselves are not kept."""

    skip_bad: bool
    lengths: array = field(default_factory=lambda: array("L"))
    """of each usable row, in bytes"""
    bad_rows: int = 0
    first_bad: str = ""
    labels: set[str] = field(default_factory=set)

    def reject(self, what: str) -> None:
        if not self.skip_bad:
            raise SourceError(what, "mend the row, or leave out such rows with --skip-bad")
        self.bad_rows += 1
        self.first_bad = self.first_bad or what


def describe_table_data(
    path: Path, files: list[Path], reader: str, task: str, hints: Hints, skip_bad: bool
) -> DataSource:
    """Rows with columns: what they are, and how long. Raises ``SourceError`` naming the row."""
    scan, lengths = Scan(skip_bad), Lengths()
    rows = keep_good_rows(READERS[reader](files, lengths), scan)
    sample = list(islice(rows, SAMPLE_ROWS))
    if not sample:
        raise SourceError(f"--data {path} holds no usable row" + show_first_fault(scan), "give a file with data")
    columns = tuple(dict.fromkeys(str(key) for _, row in sample for key in row))
    recognised = recognise_format(columns, [row for _, row in sample], task, hints, where=str(path))
    make_example, column_of = load_make_example(recognised.leaf), recognised.column_of
    label = column_of.get("label")
    for where, row in name_labels(chain(sample, rows), label, reader) if label else chain(sample, rows):
        try:
            example = make_example(row, column_of)
        except ValueError as error:
            scan.reject(f"{where}: {error}")
            continue
        if example is None:
            continue
        scan.lengths.append(measure_length(example))
        if "label" in example:
            scan.labels.add(example["label"])
    if not scan.lengths:
        raise SourceError(f"--data {path} holds no usable row" + show_first_fault(scan), "give a file with data")
    seen = len(scan.lengths)
    rows_in_all = round(seen * max(1.0, lengths.total / lengths.seen))
    mean = sum(scan.lengths) / seen / BYTES_PER_TOKEN
    return DataSource(
        path=str(path),
        format=reader,
        columns=columns,
        text_column=next((column_of[m] for m in ("text", "messages", "prompt") if m in column_of), None),
        label_column=label,
        sft_format=recognised.form if task == "sft" else None,
        recognised=recognised,
        endings=list_endings(files),
        rows=rows_in_all,
        tokens=round(rows_in_all * mean),
        token_quantiles=compute_quantiles([n / BYTES_PER_TOKEN for n in scan.lengths]),
        labels=len(scan.labels) or None,
        label_names=tuple(sorted(scan.labels)),
        complete=lengths.seen >= lengths.total,
        bad_rows=scan.bad_rows,
        notes=(
            *note_skipped_rows(scan),
            *lengths.note(),
            f"the data is read as {recognised.describe()}",
            *note_unused_labels(set(columns) - set(column_of.values()), task),
            *note_many_labels(label, len(scan.labels), seen),
            *note_similar_labels(scan.labels),
            *(note_missing_header(columns) if reader == "csv" else ()),
        ),
    )


def name_labels(rows: Iterator[tuple[str, dict]], column: str, reader: str) -> Iterator[tuple[str, dict]]:
    """The rows with labels by their names, where their own file has names for its numbers: as a project calls them."""
    if reader not in ("parquet", "arrow"):
        yield from rows
        return
    leaf = load_class_names()
    for file, of_file in groupby(rows, key=lambda row: row[0].rpartition(", row ")[0]):
        names = leaf.read_class_names(load_read_schema(reader)(Path(file)).metadata, column)
        yield from leaf.name_labels(of_file, column, names)


def show_first_fault(scan: Scan) -> str:
    return f"; the first: {scan.first_bad}" if scan.first_bad else ""


def note_skipped_rows(scan: Scan) -> tuple[str, ...]:
    return (f"{scan.bad_rows} bad rows are left out, the first: {scan.first_bad}",) if scan.bad_rows else ()


def note_unused_labels(columns: Iterable[str], task: str) -> tuple[str, ...]:
    """Where texts alone are learned beside what is called a label."""
    named = next(
        (column for column in sorted(columns) if task == "causal-lm" and column.lower() in LABEL_COLUMNS), None
    )
    return (f"{named!r} is not learned: --task text-classification learns to tell it from the text",) if named else ()


def note_many_labels(column: str | None, labels: int, rows: int) -> tuple[str, ...]:
    """Where it may be no label."""
    if column is None or labels * FEW_ROWS_PER_LABEL <= rows:
        return ()
    return (f"{column!r} has {labels:,} labels in {rows:,} rows: a label of so few rows is not learned",)


def note_similar_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Where two differ in white space or capitals alone: they are two classes."""
    spellings: dict[str, list[str]] = {}
    for label in sorted(labels):
        spellings.setdefault(" ".join(label.casefold().split()), []).append(label)
    same = [repr(label) for group in spellings.values() if len(group) > 1 for label in group]
    if not same:
        return ()
    shown = ", ".join(same[:6]) + (", …" if len(same) > 6 else "")
    return (f"labels that differ in spaces or capitals alone are learned as classes of their own: {shown}",)


def note_missing_header(columns: tuple[str, ...]) -> tuple[str, ...]:
    """Where the first line of a table looks as if it were a row: a number, or a text that is long for a name."""
    odd = next((name for name in columns if is_number(name) or len(name) > LONGEST_NAME), None)
    if odd is None:
        return ()
    shown = odd if len(odd) <= LONGEST_NAME else f"{odd[:LONGEST_NAME]}…"
    return (f"the first line is read as names of columns, one of them {shown!r}: if it is a row, write names above it",)


def is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def keep_good_rows(rows: Iterable[tuple[str, dict | str]], scan: Scan) -> Iterator[tuple[str, dict]]:
    for where, row in rows:
        if isinstance(row, dict):
            yield where, row
        else:
            scan.reject(f"{where}: {row}")


def compute_quantiles(values: Iterable[float]) -> tuple[float, ...]:
    ordered = sorted(values)
    return tuple(round(ordered[round(share / 100 * (len(ordered) - 1))], 1) for share in range(101))


def count_bytes(text: str) -> int:
    """In UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def measure_length(example: Mapping) -> int:
    """Bytes that an example is worth: of its texts, and of what a chat template puts around each turn."""
    if "messages" in example:
        messages, tools = example["messages"], example["tools"]
        tokens = TOKENS_PER_TURN * len(messages) + (TOKENS_FOR_TOOLS if tools else 0)
        tokens += 0 if messages[0]["role"] == "system" else TOKENS_PER_CONVERSATION
        turns = sum(count_bytes(turn["content"]) + count_bytes(turn["further"] or "") for turn in messages)
        given = count_bytes(tools or "") + count_bytes(example["chat_template_kwargs"] or "")
        return int(tokens * BYTES_PER_TOKEN) + turns + given
    return sum(count_bytes(example[name]) for name in ("text", "prompt", "completion") if name in example)
