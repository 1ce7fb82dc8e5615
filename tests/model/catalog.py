"""Adds a model to the catalogue: ``python tests/model/catalog.py OWNER/NAME config.json --source WHERE``.

Of the config it keeps what decides sizes, and refuses to write an entry that would be sized otherwise than the file itself.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import tomli_w

from generator.inputs.config_checks import normalize_config
from generator.model import describe
from generator.model.catalog import FOLDER
from generator.model.description import read_family
from generator.model.settings import Settings

ALWAYS = (
    "model_type",
    "architectures",
    "dtype",
    "torch_dtype",
    "tie_word_embeddings",
    "num_hidden_layers",
    "num_key_value_heads",
    "max_position_embeddings",
)
"""Fields that are kept even where another value would give the same sizes."""


def keep_sizes(config: dict, settings: Settings, decides: Callable[[dict], bool]) -> dict:
    """The fields of which another value gives other sizes, or none; ``decides`` says so of the config with that value."""
    kept: dict = {}
    for key, value in config.items():
        if key == "quantization_config" and value:
            kept[key] = {name: value[name] for name in ("quant_method", "weight_block_size") if name in value}
        elif isinstance(value, dict):
            if key in settings.entry.get("nested", {}):
                inside = partial(decides_inside, decides, config, key)
                kept[key] = keep_sizes(value, settings.nested(key), inside)
        elif (key in ALWAYS and value is not None) or any(
            decides(config | {key: other}) for other in list_others(value)
        ):
            kept[key] = value
    return kept


def decides_inside(decides: Callable[[dict], bool], config: dict, key: str, changed: dict) -> bool:
    return decides(config | {key: changed})


def list_others(value: object) -> tuple:
    """Values that a field could have in the place of ``value``."""
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int):
        return (value + 1, 2 * value + 1)
    return (7,) if value is None else ()


def reduce_config(config: dict, name: str) -> dict:
    """The config without what changes no size. Raises ``ValueError`` where it would then be sized otherwise."""
    _, settings = read_family(config)
    understood = {
        key: value for key, value in config.items() if settings.is_read(key) or key in (*ALWAYS, "quantization_config")
    }
    full = describe(understood, name)

    def decides(changed: dict) -> bool:
        try:
            return describe(changed, name) != full
        except Exception:  # a value that nothing can be built from
            return True

    kept = keep_sizes(understood, settings, decides)
    text = {key for key in understood.keys() - kept.keys() if decides(remove_key(understood, key))}
    kept = {key: kept.get(key, value) for key, value in understood.items() if key in kept or key in text}
    if describe(kept, name) != full:
        raise ValueError(f"{name}: {describe(kept, name)} is not {full}")
    return kept


def remove_key(config: dict, key: str) -> dict:
    return {other: value for other, value in config.items() if other != key}


def add_model(name: str, config: dict, **about: object) -> None:
    owner, _, short = name.rpartition("/")
    sizes, null = split_null(reduce_config(normalize_config(config), name))
    entry = {key: value for key, value in (about | {"null": null}).items() if value} | sizes
    path = FOLDER / f"{owner}.toml"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    path.write_text(f"{text}{chr(10) if text else ''}{format_entry(short, entry)}", encoding="utf-8")


def split_null(config: dict) -> tuple[dict, list[str]]:
    """TOML has no null: the fields that are, by name, ``text_config.field`` inside another."""
    kept, null = {}, []
    for key, value in config.items():
        if isinstance(value, dict):
            kept[key], inner = split_null(value)
            null += [f"{key}.{name}" for name in inner]
        elif value is None:
            null.append(key)
        else:
            kept[key] = value
    return kept, null


def format_entry(name: str, entry: dict) -> str:
    """A table of one line a field: tomli_w breaks lists and opens tables for nested configs."""
    lines = [f"{key} = {format_value(value)}" for key, value in entry.items()]
    return "\n".join([f'["{name}"]', *lines, ""])


def format_value(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {format_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(format_value, value)) + "]"
    return tomli_w.dumps({"x": value}).removeprefix("x = ").strip()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("config", type=Path)
    parser.add_argument("--source", required=True, help="short name of _sources.toml, a colon and the file")
    parser.add_argument("--revision", help="the hub's commit that the file is of")
    parser.add_argument("--same", nargs="*", help="other ids of the same sizes")
    parser.add_argument("--same-source", help="who says so")
    given = vars(parser.parse_args())
    add_model(given.pop("name"), json.loads(given.pop("config").read_text(encoding="utf-8")), **given)
