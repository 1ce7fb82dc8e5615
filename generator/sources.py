"""Reading the user's model and data files: the edge where outside text becomes values. Nothing here imports torch."""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from generator.errors import SourceError
from generator.meta_device import describe_on_meta
from generator.model import ModelSpec, NeedsMetaDevice, describe

HUB_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9_][A-Za-z0-9._-]{0,95})?", re.ASCII)
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.txt", "vocab.json", "spiece.model", "tekken.json")
MAX_HEADER_BYTES = 100_000_000
"""safetensors' own limit for a header"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A model as found: ``kind`` folder, config or hub; ``path`` what the project's config.yaml will say."""

    kind: str
    path: str
    config: str
    """the parsed config.json, as JSON text"""
    has_weights: bool
    has_tokenizer: bool
    has_chat_template: bool
    name: str = ""
    revision: str | None = None
    weight_bytes: int | None = None
    notes: tuple[str, ...] = ()


def read_model(source: str, *, offline: bool, config: str | None = None) -> ModelSource:
    """A folder, a config.json, or a hub id. ``config`` is a file to use for a hub id. Raises ``SourceError``."""
    path = Path(source)
    try:
        is_dir, is_file = path.is_dir(), path.is_file()
    except (OSError, ValueError) as error:
        raise SourceError(f"--model {source!r}: {error}", "give a folder, a config.json or a hub id") from error
    if is_dir:
        return read_folder(path.resolve(), source)
    if is_file:
        return read_config_file(path.resolve())
    if not HUB_ID.fullmatch(source) or ".." in source:
        raise SourceError(
            f"--model {source!r} is neither a folder, nor a config.json, nor a hub id",
            "a hub id is NAME or OWNER/NAME of letters, digits, dots, dashes and underscores",
        )
    return read_hub(source, offline, config)


def read_config_file(path: Path) -> ModelSource:
    """Only sizes: training from scratch. What lies beside it is not taken for its weights."""
    return ModelSource(
        kind="config",
        name=path.parent.name if path.stem == "config" else path.stem,
        path=str(path),
        config=json.dumps(load_config(path)),
        has_weights=False,
        has_tokenizer=any((path.parent / name).is_file() for name in TOKENIZER_FILES),
        has_chat_template=has_chat_template(path.parent),
        notes=(f"{path.name} holds sizes only: training starts from random weights",),
    )


def load_config(path: Path) -> dict:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}", "give a folder that holds a config.json") from error
    except ValueError as error:
        raise SourceError(f"{path} is not JSON: {error}", "give a Transformers config.json") from error
    if not isinstance(config, dict):
        raise SourceError(f"{path} holds no object but {type(config).__name__}", "give a Transformers config.json")
    if config.get("auto_map"):
        raise SourceError(
            f"{path}: the model needs its own Python code (auto_map), which perfgen never runs",
            "use a model that Transformers itself knows",
        )
    return config


def read_folder(folder: Path, said: str) -> ModelSource:
    names = {p.name for p in folder.iterdir()}
    if "config.json" not in names:
        if "adapter_config.json" in names:
            raise SourceError(f"{said} holds an adapter only", "give the base model; merge the adapter into it first")
        if any(name.endswith(".gguf") for name in names):
            raise SourceError(
                f"{said} holds GGUF files only", "give the safetensors checkpoint that they were made from"
            )
        raise SourceError(f"{said} holds no config.json", "give a Transformers model folder")
    config = load_config(folder / "config.json")
    weight_bytes = check_weights(folder, names)
    has_weights = weight_bytes is not None
    if not has_weights and any(re.fullmatch(r"pytorch_model.*\.bin", name) for name in names):
        raise SourceError(
            f"{said} holds pickled weights only (pytorch_model*.bin), which can run code when they are loaded",
            "convert them to safetensors first: AutoModel.from_pretrained(...).save_pretrained(NEW_FOLDER)",
        )
    notes = () if has_weights else (f"{said} holds no weights: training starts from random ones",)
    return ModelSource(
        kind="folder",
        name=folder.name,
        path=str(folder),
        config=json.dumps(config),
        has_weights=has_weights,
        has_tokenizer=any(name in names for name in TOKENIZER_FILES),
        has_chat_template=has_chat_template(folder),
        weight_bytes=weight_bytes,
        notes=notes,
    )


def has_chat_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file():
        return True
    try:
        return bool(json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8")).get("chat_template"))
    except (OSError, ValueError, AttributeError):
        return False


def check_weights(folder: Path, names: set[str]) -> int | None:
    """Bytes of all shards, every header looked at; ``None`` without safetensors. Raises ``SourceError``."""
    if "model.safetensors.index.json" in names:
        shards = indexed_shards(folder / "model.safetensors.index.json")
    else:
        shards = sorted(name for name in names if name.endswith(".safetensors") and not name.startswith("adapter"))
    if not shards:
        return None
    return sum(check_shard(folder / name) for name in shards)


def indexed_shards(index: Path) -> list[str]:
    try:
        named = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise SourceError(f"{index} cannot be read: {error}", "download the checkpoint again") from error
    shards = sorted(set(map(str, named)))
    for name in shards:
        if Path(name).name != name:
            raise SourceError(f"{index} names a shard outside its folder: {name!r}", "do not use this checkpoint")
        if not (index.parent / name).is_file():
            raise SourceError(f"{index} names {name}, which is missing", "download the missing file")
    return shards


def check_shard(path: Path) -> int:
    """Size in bytes; the header must be whole and agree with the file's length."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
        if not 0 < length <= min(MAX_HEADER_BYTES, size - 8):
            raise SourceError(f"{path.name} is no whole safetensors file ({size} bytes)", "download it again")
        try:
            header = json.loads(file.read(length))
            end = max((t["data_offsets"][1] for n, t in header.items() if n != "__metadata__"), default=0)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise SourceError(f"{path.name} has a broken header: {error}", "download it again") from error
    if 8 + length + end != size:
        raise SourceError(f"{path.name} has {size} bytes, its header tells of {8 + length + end}", "download it again")
    return size


def read_hub(name: str, offline: bool, config: str | None) -> ModelSource:
    """From ``config``, the local cache, or the hub. Weights and tokenizer are taken to be there."""
    notes: tuple[str, ...] = ()
    revision = None
    if config is not None:
        text = json.dumps(load_config(Path(config)))
        notes = (f"sizes of {name} come from {Path(config).name}, its files were not looked at",)
    else:
        path = cached_config(name)
        if path is None and not offline:
            path = fetch_config(name)
        if path is None:
            raise SourceError(
                f"the config.json of {name} is not in the local cache, and the hub may not be asked (offline)",
                "download it first (`hf download " + name + " config.json`), or give a folder, or --config FILE",
            )
        text, revision = json.dumps(load_config(path)), path.parent.name
    template = config is None and has_chat_template(path.parent)
    return ModelSource(
        kind="hub",
        name=name,
        path=name,
        config=text,
        has_weights=True,
        has_tokenizer=True,
        has_chat_template=template,
        revision=revision,
        notes=notes,
    )


def cached_config(name: str) -> Path | None:
    """The newest snapshot's config.json in the hub cache (HF_HUB_CACHE, HF_HOME), found without its library."""
    home = os.environ.get("HF_HOME") or Path("~/.cache/huggingface").expanduser()
    cache = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")
    repo = cache / ("models--" + name.replace("/", "--"))
    try:
        main = (repo / "refs" / "main").read_text(encoding="utf-8").strip()
    except OSError:
        return None
    path = repo / "snapshots" / main / "config.json"
    return path if path.is_file() else None


def fetch_config(name: str) -> Path | None:
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError as error:
        raise SourceError(
            f"{name} is not in the local cache, and huggingface_hub is not installed",
            "pip install huggingface_hub, or give a folder",
        ) from error
    try:
        return Path(hf_hub_download(name, "config.json", etag_timeout=10))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        first = str(error).strip().splitlines()[0]
        raise SourceError(
            f"{name}: {first}", "check the name and your access, or give a folder, or --config FILE"
        ) from error


def spec_of(source: ModelSource) -> ModelSpec:
    """Sizes from the config alone; for an architecture that the tables do not know, counted by Transformers itself."""
    config = json.loads(source.config)
    name = source.name
    try:
        return replace(describe(config, name), notes=())
    except NeedsMetaDevice as unknown:
        return describe_on_meta(config, name, str(unknown))
    except (KeyError, TypeError, ValueError) as error:
        raise SourceError(
            f"cannot size {source.path}: {error}", "a config.json with the usual size fields is needed"
        ) from error


# ---- data


EXTENSIONS = {".jsonl": "jsonl", ".csv": "csv", ".parquet": "parquet", ".txt": "txt"}
SCAN_BYTES = 32 << 20
"""How much of the data is looked at; the rest is extrapolated and said so."""
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
    files = data_files(path)
    kind = EXTENSIONS[files[0].suffix.lower()]
    if kind == "txt":
        return text_data(path.resolve(), files, task)
    scan = Scan(files, kind, skip_bad)
    return scan.finish(path.resolve(), task, text_column, label_column)


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
    if not HUB_ID.fullmatch(source) or ".." in source or source.endswith(tuple(EXTENSIONS)):
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


def text_data(path: Path, files: list[Path], task: str) -> DataSource:
    if task != "causal-lm":
        raise SourceError(
            f"--data {path}: plain text has no {'labels' if 'class' in task else 'answers'}",
            f"--task {task} needs .jsonl, .csv or .parquet",
        )
    characters = 0
    for file in files:
        with file.open("rb") as handle:
            for number, line in enumerate(handle, start=1):
                try:
                    characters += len(line.decode("utf-8-sig").strip())
                except UnicodeDecodeError as error:
                    raise SourceError(
                        f"{file}, line {number}: not UTF-8 ({error.reason})", "convert it: iconv -f latin1 -t utf-8"
                    ) from error
    if not characters:
        raise SourceError(f"--data {path} holds no text", "give a file with text")
    size = sum(f.stat().st_size for f in files)
    return DataSource(path=str(path), format="txt", rows=len(files), tokens=int(size / CHARACTERS_A_TOKEN))


class Scan:
    """One pass over the rows of all files, up to ``SCAN_BYTES``."""

    def __init__(self, files: list[Path], kind: str, skip_bad: bool):
        self.files, self.kind, self.skip_bad = files, kind, skip_bad
        self.size = sum(f.stat().st_size for f in files)
        self.bad: list[str] = []
        self.rows: list[dict] = []
        self.seen_bytes = 0
        for file in files:
            for number, row in numbered_rows(file, kind):
                if isinstance(row, str):
                    self.reject(f"{file}, row {number}: {row}")
                else:
                    self.rows.append(row)
                    self.seen_bytes += len(str(row)) if kind == "parquet" else 0
            self.seen_bytes += min(file.stat().st_size, SCAN_BYTES) if kind != "parquet" else 0
            if self.seen_bytes >= SCAN_BYTES:
                break

    def reject(self, what: str) -> None:
        if not self.skip_bad:
            raise SourceError(what, "mend the row, or leave out such rows with --skip-bad")
        self.bad.append(what)

    def finish(self, path: Path, task: str, text_column: str | None, label_column: str | None) -> DataSource:
        if not self.rows:
            raise SourceError(f"--data {path} holds no usable row", "give a file with data")
        columns = tuple(dict.fromkeys(key for row in self.rows[:1000] for key in row))
        form, text, label = self.choose(path, task, columns, text_column, label_column)
        lengths = [length_of(row, form, text) for row in self.rows]
        if not any(lengths):
            raise SourceError(
                f"--data {path}: column {text!r} is empty in every row",
                f"--text-column; there are {', '.join(columns)}",
            )
        mean = sum(lengths) / len(lengths) / CHARACTERS_A_TOKEN
        whole = self.seen_bytes and self.size > self.seen_bytes and self.kind != "parquet"
        rows = round(len(self.rows) * self.size / self.seen_bytes) if whole else len(self.rows)
        notes = [f"{len(self.bad)} bad rows are left out"] if self.bad else []
        if whole:
            notes.append(f"looked at {self.seen_bytes / 2**20:.0f} of {self.size / 2**20:.0f} MiB of the data")
        names = sorted({str(row[label]) for row in self.rows if label in row}) if label else []
        if label and len(names) < 2:
            raise SourceError(
                f"--data {path}: every row has the label {names[0] if names else None!r}",
                "give data with two classes or more",
            )
        return DataSource(
            path=str(path),
            format=self.kind,
            columns=columns,
            text_column=text,
            label_column=label,
            sft_format=form if task == "sft" else None,
            rows=rows,
            tokens=round(rows * mean),
            token_quantiles=quantiles([n / CHARACTERS_A_TOKEN for n in lengths]),
            labels=len(names) or None,
            label_names=tuple(names),
            bad_rows=len(self.bad),
            notes=tuple(notes),
        )

    def choose(
        self, path: Path, task: str, columns: tuple[str, ...], text: str | None, label: str | None
    ) -> tuple[str, str, str | None]:
        """The form of a row, its text column and its label column."""
        for asked, option in ((text, "--text-column"), (label, "--label-column")):
            if asked is not None and asked not in columns:
                raise SourceError(
                    f"{option} {asked!r}: --data {path} has {', '.join(map(repr, columns))}", "name one of these"
                )
        if task == "text-classification":
            label = label or pick(LABEL_COLUMNS, columns)
            if label is None:
                raise SourceError(
                    f"--data {path}: no label among {', '.join(map(repr, columns))}", "name it: --label-column"
                )
        if task == "sft" and text is None:
            listed = next(
                (c for c in ("messages", "conversations") if c in columns and isinstance(self.rows[0].get(c), list)),
                None,
            )
            if listed:
                return "messages", listed, None
            if "prompt" in columns and "completion" in columns:
                return "prompt_completion", "prompt", None
        text = text or pick(TEXT_COLUMNS, columns)
        if text is None:
            raise SourceError(f"--data {path}: no text among {', '.join(map(repr, columns))}", "name it: --text-column")
        form = "messages" if task == "sft" and isinstance(self.rows[0].get(text), list) else "text"
        return form, text, label if task == "text-classification" else None


def quantiles(values: list[float]) -> tuple[float, ...]:
    ordered = sorted(values)
    return tuple(round(ordered[round(share / 100 * (len(ordered) - 1))], 1) for share in range(101))


def pick(usual: tuple[str, ...], columns: tuple[str, ...]) -> str | None:
    return next((name for name in usual if name in columns), None)


def length_of(row: dict, form: str, text: str) -> int:
    """Characters of one row."""
    value = row.get(text)
    if form == "messages":
        return (
            sum(len(str(m.get("content") or "")) for m in value if isinstance(m, dict))
            if isinstance(value, list)
            else 0
        )
    extra = row.get("completion") if form == "prompt_completion" else ""
    return (len(value.strip()) if isinstance(value, str) else 0) + (len(extra) if isinstance(extra, str) else 0)


def numbered_rows(file: Path, kind: str) -> Iterator[tuple[int, dict | str]]:
    """Row number and row; text in place of a row says what is wrong with it."""
    return {"jsonl": json_rows, "csv": csv_rows, "parquet": parquet_rows}[kind](file)


def json_rows(file: Path) -> Iterator[tuple[int, dict | str]]:
    read = 0
    with file.open("rb") as handle:
        for number, line in enumerate(handle, start=1):
            read += len(line)
            if line.strip(b" \t\r\n\xef\xbb\xbf"):
                yield number, parsed(line)
            if read >= SCAN_BYTES:
                return


def parsed(line: bytes) -> dict | str:
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        return "not UTF-8"
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}"
    return row if isinstance(row, dict) else f"no object but {type(row).__name__}"


def csv_rows(file: Path) -> Iterator[tuple[int, dict | str]]:
    import csv

    csv.field_size_limit(SCAN_BYTES)
    with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as handle:
        reader = csv.DictReader(handle)
        try:
            for number, row in enumerate(reader, start=2):
                if None in row or None in row.values():
                    yield number, f"{len(reader.fieldnames or ())} columns in the first line, another number here"
                elif any("\udc80" <= c <= "\udcff" for v in row.values() for c in v):
                    yield number, "not UTF-8"
                else:
                    yield number, dict(row)
        except csv.Error as error:
            yield reader.line_num, str(error)


def parquet_rows(file: Path) -> Iterator[tuple[int, dict | str]]:
    try:
        import pyarrow.parquet as pq
        from pyarrow.lib import ArrowException
    except ImportError as error:
        raise SourceError(f"{file}: reading parquet needs pyarrow", "pip install pyarrow") from error
    try:
        with pq.ParquetFile(file) as table:
            number = 0
            for batch in table.iter_batches(1024):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (ArrowException, OSError) as error:
        yield 0, f"not a readable parquet file: {error}"
