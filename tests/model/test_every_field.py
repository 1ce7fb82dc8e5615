"""Every field of every config class, changed one at a time: the tables follow it exactly, or leave the config to
Transformers.

So a field that changes what is built cannot be overlooked; nor can a key that the class does not have but its model
reads.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))  # small.py and variants.py lie beside this file

from variants import configs

from generator.inputs.meta_device import build_model, make_config
from generator.model import NeedsMetaDevice, describe
from generator.model.families import GROUPS, load_families
from generator.model.guard import SIZE_LIKE

pytest.importorskip("transformers")
HEADS = ("hidden_size", "d_model", "n_embd", "embed_dim", "num_attention_heads", "n_head", "n_heads", "num_heads")
"""what must stay a multiple of something"""
NO_SIZE = re.compile(
    r".*(_ids?|_token|_index|_type|dropout|_prob|_eps|_epsilon|_range|_std|_coef|_act|_labels)$|initializer_.*"
)
STRANGERS = {"head_dim": 20, "num_key_value_heads": 3, "attention_bias": True, "intermediate_size": 24, "n_embed": 24}
"""keys that many configs have, given to classes that have none of them"""


def list_other_values(key: str, value: object) -> list[object]:
    """One other value that the field may have."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [2 * value] if key in HEADS else [value + 1] if value else [2]
    if isinstance(value, (list, tuple)) and value and all(isinstance(item, int) for item in value):
        return [[2 * item for item in value]]
    return [24, True] if value is None else []


def vary_fields(config: dict) -> Iterator[dict]:
    """The config with one field another, also one of a nested config."""
    from transformers import PretrainedConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    common = {field.name for field in dataclasses.fields(PretrainedConfig)}
    fields = {field.name: field.default for field in dataclasses.fields(CONFIG_MAPPING[config["model_type"]])}
    for key, default in fields.items():
        value = config.get(key, default)
        if isinstance(value, dict):
            yield from ({**config, key: inner} for inner in vary_fields(value))
        elif key not in common and SIZE_LIKE.search(key) and not NO_SIZE.fullmatch(key):
            yield from ({**config, key: new} for new in list_other_values(key, value))
    for key, new in STRANGERS.items():
        if key not in fields:
            yield {**config, key: new}
    yield {**config, "tie_word_embeddings": not fields.get("tie_word_embeddings", False)}


def count_by_tables(config: dict) -> int | None:
    """Parameters, ``None`` where the tables refuse (``sources.read_spec`` makes a message of these errors)."""
    try:
        return describe(config, "x").params
    except (NeedsMetaDevice, KeyError, TypeError, ValueError, AttributeError, ArithmeticError):
        return None


def find_difference(config: dict) -> str | None:
    """What the tables say wrongly of a config that Transformers can build."""
    params = count_by_tables(config)
    if params is None:
        return None
    try:
        model, _ = build_model(make_config(config))
    except Exception:
        return None
    truth = sum(p.numel() for p in model.parameters())
    return None if params == truth else f"{params} for {truth} of {config}"


@pytest.mark.slow
@pytest.mark.parametrize("model_type", [name for group in GROUPS for name in load_families(group)])
def test_no_field_is_overlooked(model_type):
    config = configs(model_type)[0]
    assert [wrong for more in vary_fields(config) if (wrong := find_difference(more))] == []
    counts = {params for more in vary_fields(config) if (params := count_by_tables(more))}
    assert len(counts) >= 3, "the changes change something"
