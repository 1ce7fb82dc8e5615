"""Configs and splits of a data set of the hub, from its README and the names of its files; no code of it is run.

The rules are those of datasets 5.2 (data_files.py, load.py, utils/metadata.py), which the project itself loads it with.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from generator.errors import SourceError
from generator.inputs.path_patterns import matches

SHARDED = "data/{split}-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9]*.*"
KEYWORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
"""Words in names of files and folders that make a split, in the order in which splits are listed"""
BESIDE = "-._ 0-9"
"""characters that may stand beside such a word"""
FOLDER_NAME = (
    "**/{word}/**",
    "**/{word}[{beside}]*/**",
    "**/*[{beside}]{word}/**",
    "**/*[{beside}]{word}[{beside}]*/**",
)
FILE_NAME = ("**/{word}[{beside}]*", "**/*[{beside}]{word}[{beside}]*")
IGNORED = (
    "README.md",
    "config.json",
    "dataset_info.json",
    "dataset_infos.json",
    "dummy_data.zip",
    "dataset_dict.json",
)
MODULES = {
    "parquet": (".parquet",),
    "json": (".jsonl", ".json", ".ndjson"),
    "csv": (".csv", ".tsv"),
    "text": (".txt",),
    "arrow": (".arrow",),
}
"""The reader that datasets takes for an ending, by name; others are read by no plan"""
NO_PATTERN = "take a copy of the data set with a README that can be read"
MOST_ROWS = 10**12
"""more than any data set has: a README can say anything"""
SHOWN = 20
"""How many names an error lists"""


@dataclass(frozen=True, slots=True)
class Choice:
    """One split of one config. ``files``: names in the repository, in order; ``config`` None where it need not be named."""

    config: str | None
    split: str
    files: tuple[str, ...]


def choose_split(
    name: str, card: Mapping[str, Any], names: Iterable[str], config: str | None, split: str | None
) -> Choice:
    """The split that is asked for, else train, else the only one. Raises ``SourceError``, which lists what there is."""
    names = sorted(names)
    configs = read_configs(card)
    chosen = choose_config(name, configs, config, default_of(configs, card))
    splits = list_splits(configs.get(chosen or "", {}), names)
    listed = ", ".join(list(splits)[:SHOWN])
    of = f"{name}, config {chosen}" if chosen else name
    if not splits:
        raise SourceError(f"--data {of}: no data file among {', '.join(names[:SHOWN]) or 'no files'}", "check the page")
    if split is not None and split not in splits:
        raise SourceError(f"--split {split!r}: {of} has {listed}", "name one of these")
    if split is None and "train" not in splits and len(splits) > 1:
        raise SourceError(f"--data {of} has no train split but {listed}", "name one: --split")
    split = split or ("train" if "train" in splits else next(iter(splits)))
    return Choice(chosen, split, keep_one_kind(splits[split]))


def read_configs(card: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The configs that the README's front matter lists, by name."""
    listed = card.get("configs")
    rows = listed if isinstance(listed, list) else []
    return {str(row["config_name"]): row for row in rows if isinstance(row, dict) and "config_name" in row}


def default_of(configs: Mapping[str, Mapping[str, Any]], card: Mapping[str, Any]) -> str | None:
    """The config that is loaded where none is named."""
    default = [n for n, row in configs.items() if len(configs) == 1 or n == "default" or row.get("default")]
    if default or not configs:
        return default[0] if default else None
    described = [str(info.get("config_name", "default")) for info in list_infos(card)]
    return described[0] if len(described) == 1 and described[0] in configs else None


def choose_config(
    name: str, configs: Mapping[str, Mapping[str, Any]], asked: str | None, default: str | None
) -> str | None:
    """Raises ``SourceError`` that lists the configs."""
    listed = ", ".join(list(configs)[:SHOWN]) + (f" and {len(configs) - SHOWN} more" if len(configs) > SHOWN else "")
    if asked is None:
        if configs and default is None:
            raise SourceError(f"--data {name} has several configs and no default: {listed}", "name one: --data-config")
        return default
    if asked not in configs and not (asked == "default" and not configs):
        has = listed or "one config only, default"
        raise SourceError(f"--data-config {asked!r}: {name} has {has}", "name one of these, or leave it out")
    return asked


def list_splits(config: Mapping[str, Any], names: list[str]) -> dict[str, list[str]]:
    """The files of each split, by its name."""
    folder = str(config.get("data_dir") or "").strip("/")
    base = f"{folder}/" if folder else ""
    inside = [n.removeprefix(base) for n in names if n.startswith(base)]
    patterns = config.get("data_files")
    by_split = guess_patterns(inside) if patterns is None else read_patterns(patterns)
    splits = {s: [base + n for p in listed for n in match_names(p, inside)] for s, listed in by_split.items()}
    return {split: list(dict.fromkeys(files)) for split, files in splits.items() if files}


def read_patterns(patterns: Any) -> dict[str, list[str]]:
    """``data_files`` of a README: a pattern, a list of them, or a list of splits with theirs."""
    rows = patterns if isinstance(patterns, list) else [patterns]
    if not any(isinstance(row, dict) for row in rows):
        return {"train": [str(row) for row in rows]}
    named = [(str(r["split"]), r["path"]) for r in rows if isinstance(r, dict) and "split" in r and "path" in r]
    return {split: [str(p) for p in (path if isinstance(path, list) else [path])] for split, path in named}


def guess_patterns(names: list[str]) -> dict[str, list[str]]:
    """Where nothing is written down: by the names of files, then of folders; else all is train."""
    sharded = match_names(SHARDED.format(split="*"), names)
    if sharded:
        splits = {PurePosixPath(name).name.split("-", 1)[0] for name in sharded}
        order = [s for s in KEYWORDS if s in splits] + sorted(splits - KEYWORDS.keys())
        return {split: [SHARDED.format(split=split)] for split in order}
    for forms in (FOLDER_NAME, FILE_NAME):
        by_split = {
            split: [form.format(word=word, beside=BESIDE) for word in words for form in forms]
            for split, words in KEYWORDS.items()
        }
        filled = {
            split: patterns for split, patterns in by_split.items() if any(match_names(p, names) for p in patterns)
        }
        if filled:
            return filled
    return {"train": ["**"]}


def match_names(pattern: str, names: list[str]) -> list[str]:
    """As ``resolve_pattern`` of datasets: hidden files and folders that begin with two underscores only where asked for."""
    wanted = pattern.removeprefix("./")
    try:
        matches(wanted, "")
    except (ValueError, re.error) as error:
        raise SourceError(
            f"data_files {pattern!r} of the data set's README is no pattern: {error}", NO_PATTERN
        ) from error

    def is_asked(name: str) -> bool:
        path, form = PurePosixPath(name), PurePosixPath(pattern)
        special = [[p for p in of.parent.parts if p.startswith("__")] for of in (path, form)]
        hidden = [[p for p in of.parts if p.startswith(".") and set(p) != {"."}] for of in (path, form)]
        ignored = path.name in IGNORED and path.name != form.name
        return not ignored and len(special[0]) == len(special[1]) and len(hidden[0]) == len(hidden[1])

    return [name for name in names if matches(wanted, name) and is_asked(name)]


def keep_one_kind(files: list[str]) -> tuple[str, ...]:
    """The files of the reader that most of them ask for, parquet first; all, where none is known."""
    kinds = Counter(kind for file in files if (kind := name_reader(file)))
    if not kinds:
        return tuple(files)
    best = max(kinds, key=lambda kind: (kinds[kind], -list(MODULES).index(kind)))
    return tuple(file for file in files if name_reader(file) == best)


def name_reader(file: str) -> str | None:
    endings = [f".{part.lower()}" for part in PurePosixPath(file).name.split(".")[1:]]
    return next((kind for kind, own in MODULES.items() if any(e in own for e in endings)), None)


def count_rows(card: Mapping[str, Any], config: str | None, split: str) -> int | None:
    """``num_examples`` of the README, None where it does not say."""
    for info in list_infos(card):
        if str(info.get("config_name", "default")) == (config or "default"):
            splits = info.get("splits")
            listed = splits if isinstance(splits, list) else []
            rows = [s for s in listed if isinstance(s, dict) and s.get("name") == split]
            number = rows[0].get("num_examples") if rows else None
            return number if isinstance(number, int) and 0 < number <= MOST_ROWS else None
    return None


def list_infos(card: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    infos = card.get("dataset_info")
    listed = infos if isinstance(infos, list) else [infos]
    return [info for info in listed if isinstance(info, dict)]
