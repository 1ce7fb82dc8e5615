"""A data set of the hub: which commit, config and split, and the first rows of it, as a file on this machine."""

from __future__ import annotations

import csv
import io
import json
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from generator.errors import SourceError
from generator.inputs.held import make_scratch
from generator.inputs.hub_requests import HubUnreachable, ask_hub
from generator.inputs.hub_splits import Choice, choose_split, count_rows, name_reader
from generator.inputs.leaves import load_choose_form

HEAD_BYTES = 8 << 20
"""How much of a file that is read from its beginning is fetched"""
HEAD_ROWS = 2000
"""how many rows of a parquet file are"""
DATA_SECONDS = 60
"""How long the hub may take to hand over a beginning of data"""
MOST_VALUES = 1_000_000
"""of a README's front matter: one that lists a thousand configs has some 50,000"""
STANDALONE_CARD = ".huggingface.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSample:
    """``file``: the first rows of the split as .jsonl or .parquet, None where nobody could look. ``rows``: of all, where known;
    ``share``: which part of the split's bytes, or of its rows, ``file`` holds."""

    revision: str | None = None
    config: str | None = None
    split: str | None = None
    file: Path | None = None
    rows: int | None = None
    share: float = 1.0
    notes: tuple[str, ...] = ()


@contextmanager
def fetch_sample(name: str, config: str | None, split: str | None, offline: bool) -> Generator[HubSample]:
    """What the hub has under ``name``; the file is gone afterwards. Raises ``SourceError`` for what the hub denies; a hub that
    cannot be asked is a note."""
    if offline:
        yield HubSample(config=config, split=split, notes=(explain_assumption(name, "offline"),))
        return
    with make_scratch() as scratch:
        try:
            yield read_head(name, config, split, scratch)
        except HubUnreachable as error:
            why = error.message.removeprefix(f"{name}: ")
            yield HubSample(config=config, split=split, notes=(explain_assumption(name, why),))


def explain_assumption(name: str, why: str) -> str:
    return f"{name} was not looked at ({why}): its columns and size are assumed, its split is chosen when it is loaded"


def read_head(name: str, config: str | None, split: str | None, scratch: Path) -> HubSample:
    """Raises ``SourceError``."""
    revision, sizes, card = read_page(name)
    script = f"{name.rsplit('/', 1)[-1]}.py"
    if script in sizes:
        raise SourceError(
            f"--data {name} is made by its own Python code ({script}), which datasets no longer runs, nor perfgen",
            "take a copy of it that holds data files",
        )
    choice = choose_split(name, card, sizes, config, split)
    first, kind = choice.files[0], name_reader(choice.files[0])
    rows = count_rows(card, choice.config, choice.split)
    sample = HubSample(revision=revision, config=choice.config, split=choice.split, rows=rows)
    if kind not in (*HEAD_READERS, "parquet"):
        note = f"{name}: {first} is of a kind that is not read here: its columns are assumed"
        return replace(sample, notes=(note,))
    try:
        file, share, rows_of_file = ask_hub(
            name, "dataset", lambda: fetch_rows(name, revision, first, sizes[first], scratch), DATA_SECONDS
        )
    except ImportError:
        note = f"{name}: its columns are assumed, reading {first} needs pyarrow (pip install pyarrow)"
        return replace(sample, notes=(note,))
    of_all = sizes[first] / (sum(sizes[f] for f in choice.files) or 1)
    if rows is None and rows_of_file is not None and len(choice.files) == 1:
        rows = rows_of_file
    note = describe_reading(name, choice, revision)
    return replace(sample, file=file, rows=rows, share=share * of_all, notes=(note,))


def describe_reading(name: str, choice: Choice, revision: str) -> str:
    where = f"config {choice.config}, " if choice.config else ""
    several = f" of {len(choice.files)}" if len(choice.files) > 1 else ""
    return (
        f"{name}: {where}split {choice.split} at {revision[:12]}, looked at the beginning of {choice.files[0]}{several}"
    )


def read_page(name: str) -> tuple[str, dict[str, int], dict[str, Any]]:
    """The newest commit, the size of each file, and the front matter of the README. Raises ``SourceError``."""
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.hf_api import RepoFile

    def ask() -> tuple[str, dict[str, int], dict[str, Any]]:
        commit = HfApi().dataset_info(name).sha
        tree = HfApi().list_repo_tree(name, recursive=True, revision=commit, repo_type="dataset")
        sizes = {entry.path: entry.size for entry in tree if isinstance(entry, RepoFile)}
        card: dict[str, Any] = {}
        for file in ("README.md", STANDALONE_CARD):
            if file in sizes:
                path = Path(hf_hub_download(name, file, repo_type="dataset", revision=commit))
                text = path.read_text(encoding="utf-8", errors="replace")
                card |= read_front_matter(name, file, text if file == "README.md" else f"---\n{text}\n---\n")
        return commit or "main", sizes, card

    return ask_hub(name, "dataset", ask)


def read_front_matter(name: str, file: str, text: str) -> dict[str, Any]:
    """The YAML between the first two lines of dashes. Raises ``SourceError``."""
    from huggingface_hub import DatasetCard
    from yaml import YAMLError

    try:
        card = DatasetCard(text, ignore_metadata_errors=True).data.to_dict()
        check_extent(card)
        return card
    except (YAMLError, ValueError, RecursionError) as error:
        raise SourceError(*explain_damage(f"{name}, {file}", error)) from error


def check_extent(card: dict[str, Any]) -> None:
    """Anchors of YAML name one list again and again: a page of them can stand for a billion. Raises ``ValueError``."""
    waiting: list[Any] = [card]
    for _ in range(MOST_VALUES):
        if not waiting:
            return
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, (list, tuple)):
            waiting += value
    raise ValueError(f"it holds more than {MOST_VALUES:,} values")


def open_remote(path: str, block: int) -> BinaryIO:
    """A file of the hub that is read by ranges, ``block`` bytes at a time."""
    from huggingface_hub import HfFileSystem, constants

    return HfFileSystem(endpoint=constants.ENDPOINT, skip_instance_cache=True).open(path, "rb", block_size=block)


def fetch_rows(name: str, revision: str, file: str, size: int, scratch: Path) -> tuple[Path, float, int | None]:
    """The first rows of one data file."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    get_hf_file_metadata(hf_hub_url(name, file, repo_type="dataset", revision=revision))  # says why, where it is denied
    fetch = fetch_parquet if name_reader(file) == "parquet" else fetch_lines
    return fetch(f"datasets/{name}@{revision}/{file}", size, scratch)


def fetch_parquet(path: str, size: int, scratch: Path) -> tuple[Path, float, int | None]:
    """The first rows, by its footer and the pages that hold them. The file, its share of the rows, and the rows of all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = scratch / "sample.parquet"
    with open_remote(path, 1 << 20) as remote:
        try:
            table = pq.ParquetFile(remote, buffer_size=1 << 20, pre_buffer=False)
            batch = next(table.iter_batches(batch_size=HEAD_ROWS), None)
        except pa.ArrowException as error:
            raise SourceError(*explain_damage(path, error)) from error
        rows = table.metadata.num_rows
        if batch is None:
            raise SourceError(f"--data {path} holds no row", "give a data set with rows")
        pq.write_table(pa.Table.from_batches([batch]), file)
    return file, batch.num_rows / rows, rows


def fetch_lines(path: str, size: int, scratch: Path) -> tuple[Path, float, int | None]:
    """The first rows of a file of text, as JSON lines. The file, and its share of the bytes."""
    with open_remote(path, HEAD_BYTES) as remote:
        raw = remote.read(min(size, HEAD_BYTES))
    complete = len(raw) >= size
    packed = path.endswith(".gz")
    try:
        content = zlib.decompressobj(31).decompress(raw, 8 * HEAD_BYTES) if packed else raw
        rows = HEAD_READERS[name_reader(path) or ""](content.decode("utf-8-sig", errors="surrogateescape"), path)
    except (zlib.error, csv.Error, RecursionError) as error:
        raise SourceError(*explain_damage(path, error)) from error
    complete = complete and not (packed and len(content) == 8 * HEAD_BYTES)
    rows = rows if complete or len(rows) < 2 else rows[:-1]  # the last one is cut
    file = scratch / "sample.jsonl"
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", errors="surrogateescape")
    return file, len(raw) / size if size else 1.0, len(rows) if complete else None


def explain_damage(path: str, error: Exception) -> tuple[str, str]:
    reason = " ".join(str(error).split())
    return f"--data {path} cannot be read: {reason}", "the file is damaged, or not of the kind that its ending says"


def read_json_head(text: str, path: str) -> list[Any]:
    """Lines as they are; the objects of a list, as far as it goes."""
    if not text.lstrip().startswith("["):
        return [line for line in text.splitlines() if line.strip()]
    decoder, rows, at = json.JSONDecoder(), [], text.index("[") + 1
    while True:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        try:
            row, at = decoder.raw_decode(text, at)
        except ValueError:  # the end of the list, or of what was fetched
            return rows
        rows.append(row)


def read_csv_head(text: str, path: str) -> list[dict]:
    csv.field_size_limit(HEAD_BYTES)
    mark = load_choose_form()(text.partition("\n")[0])["delimiter"]
    if mark != "," and ".tsv" not in path:  # datasets would load one column
        raise SourceError(f"--data {path} has {mark!r} between its columns", "take a copy of it with commas")
    return list(csv.DictReader(io.StringIO(text, newline=""), delimiter="\t" if ".tsv" in path else ","))


def read_text_head(text: str, path: str) -> list[dict]:
    return [{"text": line} for line in text.splitlines()]


HEAD_READERS = {"json": read_json_head, "csv": read_csv_head, "text": read_text_head}
