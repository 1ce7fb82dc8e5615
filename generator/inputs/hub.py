"""A model of the hub, as its small files show it: those that are cached, and the others fetched; or as the catalogue has it."""

from __future__ import annotations

import json
from pathlib import Path

from generator.errors import SourceError
from generator.inputs.chat_templates import TEMPLATE_FILE, TOKENIZER_CONFIG, find_chat_template
from generator.inputs.config_checks import load_config, normalize_config
from generator.inputs.hub_files import fetch_config, fetch_small_files, find_cached_file, list_files
from generator.inputs.hub_requests import HubDenied, HubUnreachable
from generator.inputs.model_folder import (
    TOKENIZER_FILES,
    WITHOUT_WEIGHTS,
    check_tokenizer_config,
    explain_missing_config,
    refuse_other_weights,
)
from generator.inputs.model_source import ModelSource
from generator.inputs.safetensors_headers import find_weights, refuse_unread
from generator.model.catalog import find_catalog_model, list_nearest_names


def read_hub(name: str, offline: bool, config: str | None, mode: str = "train") -> ModelSource:
    """From ``config``, the local cache, the hub, or the catalogue, the first of these that has it.

    What the files do not show is taken to be there. Raises ``SourceError``.
    """
    if config is not None:
        return ModelSource(
            **make_hub_fields(name),
            config=json.dumps(load_config(Path(config))),
            has_weights=True,
            has_tokenizer=True,
            has_chat_template=None,
            notes=(f"sizes of {name} come from {Path(config).name}, its files were not looked at",),
        )
    cached = find_cached_file(name, "config.json")
    path = cached if isinstance(cached, Path) else None
    if path is None and offline:
        return read_catalog(name, "the hub may not be asked (offline)", None)
    if path is None:
        try:
            path = fetch_config(name)
        except (HubUnreachable, HubDenied) as error:
            return read_catalog(name, error.message.removeprefix(f"{name}: "), error)
    if path is None:
        raise SourceError(*explain_missing_config(name, set(list_files(name, None))))
    return describe_snapshot(name, path.parent, offline, mode)


def read_catalog(name: str, why: str, error: SourceError | None) -> ModelSource:
    """The model by the sizes that perfgen brings. ``why`` its files were not read; ``error`` is what the hub said.

    Raises ``SourceError`` for a model that is not in the catalogue.
    """
    model = find_catalog_model(name)
    if model is None:
        message = error.message if error else f"the config.json of {name} is not in the local cache, and {why}"
        raise SourceError(message, suggest_config(name, error))
    return ModelSource(
        **make_hub_fields(name),
        config=json.dumps(normalize_config(dict(model.config))),
        has_weights=True,
        has_tokenizer=True,
        has_chat_template=None,
        revision=model.revision,
        notes=(
            f"sizes of {name} come from perfgen's catalogue, its files were not looked at: {why}",
            f"the catalogue has them from {model.source}",
        ),
    )


def suggest_config(name: str, error: SourceError | None) -> str:
    """What to do about a model that neither the hub nor the catalogue shows."""
    advice = error.hint.partition(", or give")[0] if error and error.hint else None
    first = advice or f"download it first (`hf download {name} config.json`)"
    near = list_nearest_names(name)
    like = f" (it has {', '.join(near)})" if near else ""
    return f"{first}; or give a folder, or its sizes with --config FILE; perfgen's catalogue does not have {name}{like}"


def make_hub_fields(name: str) -> dict:
    return {"kind": "hub", "name": name, "path": name}


def describe_snapshot(name: str, folder: Path, offline: bool, mode: str) -> ModelSource:
    """The model whose snapshot of the cache is ``folder``; that is named by the commit."""
    listed, notes = (None, ()) if offline or has_all(name, folder) else complete_snapshot(name, folder)
    names = {p.name for p in folder.iterdir()} | (listed or frozenset())
    config = load_config(folder / "config.json")
    has_weights = find_weights(names, config.get("transformers_weights")) is not None
    if not has_weights:
        refuse_other_weights(name, names)
    if not has_weights and listed is not None:  # else the rest of what is cached may be on the hub
        refuse_unread(name, names)
    check_tokenizer_config(folder)
    if offline and not has_weights:
        notes = (f"the weights of {name} are not in the local cache: the project downloads them when it first runs",)
    if listed is not None and not has_weights:
        notes = (f"{name} holds no weights: {WITHOUT_WEIGHTS[mode]}",)
    has_tokenizer = any(file in names for file in TOKENIZER_FILES)
    known = listed is not None or (has_tokenizer and is_tokenizer_known(name, folder))
    return ModelSource(
        **make_hub_fields(name),
        config=json.dumps(config),
        has_weights=has_weights or listed is None,
        has_tokenizer=has_tokenizer or listed is None,
        has_chat_template=find_chat_template(folder, listed, known),
        revision=folder.name,
        notes=notes,
    )


def is_tokenizer_known(name: str, folder: Path) -> bool:
    """Whether the cache has what says if there is a chat template, or knows that the model lacks it."""
    return all(find_cached_file(name, file, folder.name) is not None for file in (TOKENIZER_CONFIG, TEMPLATE_FILE))


def has_all(name: str, folder: Path) -> bool:
    """Whether the model needs no question to the hub: it was downloaded before, weights and tokenizer."""
    names = {p.name for p in folder.iterdir()}
    complete = find_weights(names) is not None and any(n in names for n in TOKENIZER_FILES)
    return complete and (is_tokenizer_known(name, folder) or find_chat_template(folder) is True)


def complete_snapshot(name: str, folder: Path) -> tuple[frozenset[str] | None, tuple[str, ...]]:
    """The names of all files of the model, its small ones fetched. None, and why, where the hub does not hand them over."""
    try:
        listed = list_files(name, folder.name)
        fetch_small_files(name, folder.name, listed)
    except SourceError as error:
        return None, (f"of {name} only config.json could be read: {error.message}",)
    return listed, ()
