"""How far a config stretches its rotary embeddings, and which rows it turns otherwise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real


def find_stretched_positions(config: Mapping) -> int | None:
    """Positions that YaRN reaches by its factor, where they are more than ``max_position_embeddings`` says; else ``None``.

    Model cards say to add the factor alone (https://huggingface.co/Qwen/Qwen2.5-7B-Instruct, "Processing Long Texts"), and
    Transformers computes the embeddings so. But all who ask how long a text may be read ``max_position_embeddings`` (vLLM 0.32,
    config/model.py: "YaRN variants leave max_position_embeddings already scaled").
    """
    text, scaling = read_scaling(config)
    stated = (
        scaling.get("factor"),
        scaling.get("original_max_position_embeddings"),
        text.get("max_position_embeddings"),
    )
    numbers = [float(value) for value in stated if isinstance(value, Real) and math.isfinite(value)]
    if name_kind(scaling) != "yarn" or len(numbers) < len(stated):
        return None
    factor, original, positions = numbers
    return int(factor * original) if factor * original > positions else None


def find_rotation(config: Mapping) -> str | None:
    """The kind of rotary embeddings, where they are not plain ones; of layers that have their own, the first such kind."""
    _, scaling = read_scaling(config)
    kinds = [scaling, *(inner for inner in scaling.values() if isinstance(inner, Mapping))]
    return next((kind for each in kinds if (kind := name_kind(each)) not in (None, "default")), None)


def find_alike_positions(config: Mapping) -> int | None:
    """Tokens of the longest row that is turned as shorter ones are; ``None``: all are. LongRoPE has other factors for rows that
    are longer (Phi-3), so that keys of both kinds do not go together."""
    text, scaling = read_scaling(config)
    if name_kind(scaling) not in ("longrope", "su"):
        return None
    return text.get("original_max_position_embeddings") or scaling.get("original_max_position_embeddings")


def read_scaling(config: Mapping) -> tuple[Mapping, Mapping]:
    """The config of the text model, and what it says of its rotary embeddings."""
    text = config.get("text_config") or config
    return text, text.get("rope_parameters") or text.get("rope_scaling") or {}


def name_kind(scaling: Mapping) -> str | None:
    return scaling.get("rope_type", scaling.get("type"))


def describe_stretching(positions: int) -> str:
    return f'write "max_position_embeddings": {positions} into it, which is what plan, project and engines go by'
