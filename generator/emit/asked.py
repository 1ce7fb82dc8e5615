"""What was asked for, as plan.json keeps it: so that the same can be asked again, of another machine or with one thing changed.

Only what was given: a default is decided anew. For a local path that the project reads, null stands: config.yaml says where it is. Of the
others (--config, --hardware) it is relative to the project, and null where there is none (`perfgen plan`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from generator.case.held_out import NUMBER
from generator.case.request import OF_ANSWERS, OF_DATA, OF_TRAINING, Request
from generator.case.workload import ADAPTERS
from generator.emit.plan_json import read_value
from generator.errors import UsageError
from generator.inputs.hub_ids import is_hub_id

NOT_KEPT = ("given", "offline")
"""Of the terminal that it was typed in, not of the project."""
SOURCES = {
    "model": "model", "tokenizer": "tokenizer", "draft_model": "draft_model", "data": "data", "eval": "eval_data", "config": None, "hardware": None,
}  # fmt: skip
"""Options that may be paths, and the key of config.yaml that has the same."""
DEPENDENT = {
    "model": ("config", "tokenizer", "from_scratch"),
    "data": ("data_config", "split", "text_column", "label_column", "format", "columns", "labels", "skip_bad"),
    "task": ("format", "columns", "loss_on", "label_column", "labels"),
    "hardware": ("measure", "host_memory", "disk", "link"),
    "measure": ("hardware", "host_memory", "disk", "link"),
    "mode": (*OF_ANSWERS, *OF_TRAINING, *OF_DATA, "data", "seq_len", "loss_on", "optimize_for", "pins", "allow"),
    "seq_len": ("prompt_tokens",),
    "prompt_tokens": ("seq_len",),
}
"""What was said of the one that is now another."""
OF_ADAPTERS = ("adapter", "lora_rank", "lora_dropout")
"""What is dropped where none are trained any more."""
SHARES = ("lora_dropout",)
"""From 0, below 1."""
NAMES = {"pin": "pins", "column": "columns", "no_packing": "packing"}
"""Options whose field is called otherwise."""
OPTION_OF_CONFIG = {
    "seq_len": "seq-len", "training.learning_rate": "learning-rate", "training.num_train_epochs": "epochs",
    "training.max_steps": "max-steps", "lora.r": "lora-rank", "lora.lora_dropout": "lora-dropout", "loss_on": "loss-on",
    "training.report_to": "report-to",
}  # fmt: skip
"""Values of config.yaml that a plan is made for."""


def record_request(request: Request, folder: Path | None) -> dict[str, Any]:
    """The options that were given, as JSON; ``folder`` is where the project will be."""
    record = {}
    for field in fields(request):
        value = getattr(request, field.name)
        if field.name in NOT_KEPT or not request.is_given(field.name):
            continue
        if is_path(field.name, value):
            value = None if folder is None or SOURCES[field.name] else relate_path(value, folder)
        record[field.name] = (
            [list(v) if isinstance(v, tuple) else v for v in value] if isinstance(value, tuple) else value
        )
    return record


def is_path(name: str, value: Any) -> bool:
    """Whether an option's value is a file or folder here, and no id, spec or number."""
    if value is None or name not in SOURCES:
        return False
    if name == "hardware":
        return value.endswith(".json") or Path(value).is_file()
    if name == "eval" and (value == "none" or NUMBER.fullmatch(value)):
        return False
    return Path(value).exists() or not is_hub_id(value)


def relate_path(path: str, folder: Path) -> str:
    """From the project, beginning with a dot, as no id does; as it is where nothing leads there (another drive)."""
    try:
        relative = Path(os.path.relpath(Path(path).absolute(), folder)).as_posix()
    except ValueError:
        return path
    return relative if relative.startswith("../") else f"./{relative}"


def restore_request(plan: Mapping[str, Any], folder: Path, anew: tuple[str, ...] = ()) -> Request:
    """The request of a project in ``folder``, its paths absolute.

    Raises ``UsageError`` where plan.json does not say it, and for a path that is not there, unless the field is given ``anew``.
    """
    record = plan.get("request")
    hint = "give the options to `perfgen init --overwrite`, which keeps the old folder beside the new one"
    if not isinstance(record, Mapping):
        raise UsageError(f"{folder / 'plan.json'} does not say what was asked for: an older perfgen wrote it", hint)
    kinds, values = get_type_hints(Request), {}
    try:
        for name, value in record.items():
            if name in kinds and name not in NOT_KEPT:
                values[name] = read_value(kinds[name], value, f"request.{name}")
                check_number(name, values[name])
    except ValueError as error:
        raise UsageError(f"{folder / 'plan.json'}: {error}", hint) from error
    config = plan.get("config")
    for name in [name for name in SOURCES if name in values]:
        try:
            values[name] = find_source(name, values[name], config if isinstance(config, Mapping) else {}, folder)
        except UsageError:
            if name not in anew:
                raise
            del values[name]
    return Request(**values, given=tuple(values))


def check_number(name: str, value: Any) -> None:
    """The options' own ranges, for a value that may have been written by hand. Raises ``ValueError``."""
    if name in SHARES:
        if not 0 <= value < 1:
            raise ValueError(f"request.{name} is {value}, and not from 0, below 1")
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and not 0 < value < math.inf:
        raise ValueError(f"request.{name} is {value}, and not above 0")


def find_source(name: str, value: str | None, config: Mapping[str, Any], folder: Path) -> str:
    """A model, data or the like as a path that is there, or as its id. Raises ``UsageError`` for a path that is not."""
    if value is not None and not value.startswith(("./", "../", "/", "~")) and not Path(value).is_absolute():
        return value
    if value is None:
        given = "adapter" if name == "model" and "adapter" in config else SOURCES[name] or ""
        value = config.get(given)
    if not isinstance(value, str):
        raise UsageError(f"the project was planned with a file for --{name}, and does not say which", f"give --{name}")
    path = follow_link(Path(os.path.normpath(folder / value)))
    if not path.exists() and not list_matches(path):
        raise UsageError(
            f"the project was planned with --{name} {value}, and there is no {path}", f"give --{name}, or put it there"
        )
    return str(path)


def follow_link(path: Path) -> Path:
    """Where a place in the project leads that is a link, or whose files are: to what was named when it was planned."""
    if path.is_symlink():
        return Path(os.path.normpath(path.parent / path.readlink()))
    files = [] if path.exists() else list_matches(path)
    folders = {follow_link(file).parent for file in files if file.is_symlink()}
    return folders.pop() / path.name if len(folders) == 1 else path


def list_matches(path: Path) -> list[Path]:
    """The files that a pattern stands for."""
    return sorted(path.parent.glob(path.name))


def is_same(name: str, old: Any, new: Any) -> bool:
    """Whether two values of an option are one, or paths of one file."""
    if name in SOURCES and old is not None and new is not None:
        return os.path.realpath(old) == os.path.realpath(new)
    return old == new


def merge_requests(kept: Request, today: Request, forget: tuple[str, ...] = ()) -> tuple[Request, tuple[str, ...]]:
    """What the project was asked for, with what is asked today; and the kept options that are dropped with it, by name.

    ``forget`` names options that are decided anew. Raises ``UsageError`` where nothing would be left to train.
    """
    values = {name: getattr(kept, name) for name in kept.given}
    new = {name: getattr(today, name) for name in today.given}
    dropped = [
        other
        for name in new
        for other in DEPENDENT.get(name, ())
        if other in values and other not in new and not is_same(name, values.get(name), new[name])
    ]
    if new.get("train", "full" if "train" in forget else None) == "full":
        dropped += [other for other in OF_ADAPTERS if other in values and other not in new]
    dropped += [other for name in forget for other in DEPENDENT.get(name, ()) if other in values and other not in new]
    for name in (*dropped, *(NAMES.get(option, option) for option in forget)):
        values.pop(name, None)
    for name in ("pins", "columns"):
        if name in new and name in values:
            new[name] = tuple({**dict(values[name]), **dict(new[name])}.items())
    if "allow" in new and "allow" in values:
        new["allow"] = tuple(dict.fromkeys((*values["allow"], *new["allow"])))
    values |= new
    request = replace(today, **values, given=tuple(values))
    if request.mode == "train" and request.model is not None and request.data is None:
        raise UsageError("there is nothing to train on", "give --data FILE, folder or hub id")
    options = {field: option for option, field in NAMES.items()}
    return request, tuple(f"--{options.get(name, name).replace('_', '-')}" for name in dict.fromkeys(dropped))


def find_config_edits(
    config: Mapping[str, Any], plan: Mapping[str, Any], replanned: Mapping[str, Any] | None = None
) -> tuple[str, ...]:
    """What config.yaml says by hand of values that the plan was made for, in words: the edit stays, the plan does not know it.

    ``replanned`` is the plan that takes the place of ``plan``, where one does: it may be for the edited value.
    """
    notes = []
    for path, option in OPTION_OF_CONFIG.items():
        here, emitted = (find_value(source, path) for source in (config, plan.get("config")))
        planned = emitted if replanned is None else find_value(replanned.get("config"), path)
        if isinstance(here, (list, dict)):  # of YAML's aliases: a kilobyte may be a terabyte once it is written out
            notes.append(f"config.yaml says of {path} what is no single value, and the plan is for {planned}")
        elif None not in (here, emitted, planned) and here not in (emitted, planned):
            notes.append(
                f"config.yaml says {path}: {here}, and the plan is for {planned}: --{option} {here} plans for that"
            )
    here, emitted = (name_adapter(source) for source in (config, plan.get("config")))
    planned = emitted if replanned is None else name_adapter(replanned.get("config"))
    if None not in (here, emitted, planned) and here not in (emitted, planned):
        way = f"--adapter {here} plans for that" if here in ADAPTERS else "that cannot be planned"
        notes.append(f"config.yaml says of lora that it is {here}, and the plan is for {planned}: {way}")
    return tuple(notes)


def name_adapter(config: Any) -> str | None:
    """The form of the adapters that config.yaml asks for; ``None`` where it has none."""
    if not isinstance(find_value(config, "lora"), Mapping):
        return None
    switched = [form for form in ADAPTERS if find_value(config, f"lora.use_{form}") is True]
    return " and ".join(switched) or "lora"


def find_value(mapping: Any, path: str) -> Any:
    for key in path.split("."):
        mapping = mapping.get(key) if isinstance(mapping, Mapping) else None
    return mapping
