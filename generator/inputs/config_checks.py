"""A config.json whose sizes can be meant."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import TypeGuard

from generator.errors import SourceError
from generator.inputs.dtypes import find_unknown_dtypes
from generator.inputs.json_files import read_json
from generator.model import ModelSpec
from generator.model.settings import load_defaults

SHAPES = {
    "model_type": str,
    "architectures": (list, type(None)),
    "text_config": (dict, type(None)),
    "quantization_config": (dict, type(None)),
    "dtype": (str, type(None)),
    "torch_dtype": (str, type(None)),
    **dict.fromkeys(("hidden_act", "activation_function", "hidden_activation"), (str, type(None))),
    **dict.fromkeys(("rope_scaling", "rope_parameters"), (dict, type(None))),
}
"""What JSON holds under the keys that are read as something else than a size."""
MOST_LAYERS = 10_000
COUNTS = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), (1, MOST_LAYERS)),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "num_attention_heads", "n_head", "vocab_size"), (1, 10**9)),
    **dict.fromkeys(
        (
            "num_key_value_heads",
            "head_dim",
            "intermediate_size",
            "n_inner",
            "moe_intermediate_size",
            "num_local_experts",
            "num_experts",
            "n_routed_experts",
            "moe_num_experts",
            "num_experts_per_tok",
            "num_experts_per_token",
            "moe_topk",
            "moe_k",
            "top_k_experts",
            "type_vocab_size",
            "sliding_window",
        ),
        (0, 10**9),
    ),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), (0, 10**12)),
}
"""The least and the most of the sizes that are read; 10^12 positions, for some configs say 1e9 or more for "no limit"."""
LAYERS = re.compile(r"(?!max_window_layers)(.*_)?(layers?|blocks|depths?|stages)")
"""Endings of counts of layers, each of which is looked at by itself: a billion would take minutes."""
NEVER_BELOW_0 = re.compile(
    r"(?!chunk_size)(.*_)?(size|dim|rank|width|depth|heads|channels|layers|experts|groups|kernel|replace|step|period|interval|pattern|d_state|d_conv)"
)
"""Endings of further sizes, of one architecture or a few each. Phi-4's chunk_size is -1: none."""
NUMBERS = re.compile(r"(.*_)?(size|dim|rank|width|depth|heads|channels|layers|experts|groups)")
"""Those of them that are no text in any architecture; others may spell a pattern of layers."""
RATES = re.compile(
    r"(.*_)?(eps|epsilon|theta|partial_rotary_factor)|((attention|attn|resid|embd|hidden|activation)_)?(dropout|pdrop|dropout_prob)"
)
"""Endings of what changes no size, and is a number that is not negative all the same: Transformers would end at it after the plan."""
FACTORS = re.compile(r".*_(alpha|beta)_factor")
"""MiniMax's, whose defaults are whole: published ones are 3.55…"""
NEVER_0 = re.compile(r"(.*_)?(patch_size|image_size|channels|v_head_dim|kv_lora_rank|state_size)")


def load_config(path: Path) -> dict:
    """A Transformers config.json whose sizes are numbers. Raises ``SourceError``."""
    hint = "give a Transformers config.json"
    config = read_json(path, hint)
    if not isinstance(config, dict):
        raise SourceError(f"{path} holds no object but {type(config).__name__}", hint)
    if "model_type" not in config:
        raise SourceError(f"{path} {explain_other(config)}", hint)
    config = name_mlx(config)
    for wrong in find_oddities(config):
        raise SourceError(f"cannot size {path}: {wrong}", "a config.json with the usual size fields is needed")
    for wrong in find_unknown_dtypes(config):
        raise SourceError(f"{path}: {wrong}", "correct it to what the weights are stored in")
    return normalize_config(config)


def explain_other(config: dict) -> str:
    """What a JSON object is of that names no type of Transformers."""
    if isinstance(name := config.get("_class_name"), str):
        return f"is of Diffusers ({name}), and perfgen plans models of Transformers"
    if isinstance(base := config.get("base_model_name_or_path"), str):
        return f"is of an adapter, and says nothing of the sizes of {base}, which it is for"
    return "names no model_type"


def name_mlx(config: dict) -> dict:
    """mlx-lm says only ``quantization`` of weights that it packed; a quantization_config beside it is the same, without a method."""
    packed, other = config.get("quantization"), config.get("quantization_config") or {}
    if not isinstance(packed, dict) or "bits" not in packed or not isinstance(other, dict) or "quant_method" in other:
        return config
    return {key: value for key, value in config.items() if key != "quantization"} | {
        "quantization_config": packed | {"quant_method": "mlx"}
    }


def find_oddities(config: dict, default_type: str = "") -> Iterator[str]:
    """What in a config cannot be meant: text where a number belongs, a negative size, a null object. ``default_type``: of a config
    inside another that names none."""
    model_type = config.get("model_type", default_type)
    entry = load_defaults()["types"].get(model_type, {}) if isinstance(model_type, str) else {}
    for key, value in config.items():
        if key in SHAPES and not isinstance(value, SHAPES[key]):
            yield f"{key} is {shorten(value)}, {name_kinds(SHAPES[key])} is expected"
        elif key == "architectures" and not all(isinstance(name, str) for name in value or ()):
            yield f"{key} holds {shorten(value)}, names are expected"
        elif key == "quantization_config" and value and not isinstance(read_quant_method(value), str):
            yield f"{key} names no quant_method"
        elif key in COUNTS:
            least, most = COUNTS[key]
            per_layer = isinstance(value, list) and value and key != "vocab_size"
            for number in value if per_layer else [value]:
                if number is not None and not is_count(number, least, most):
                    yield f"{key} is {shorten(number)}, a whole number from {least} to {most} is expected"
        elif key == "sliding_window_pattern" and isinstance(value, str) and config.get("layer_types"):
            continue  # EXAONE 4's "LLLG", which nobody reads where the layers are listed
        elif value is not None and (expected := find_other_kind(key, value, entry.get("defaults", {}).get(key))):
            yield f"{key} is {shorten(value)}, {expected} is expected"
        elif isinstance(value, dict) and key != "quantization_config":  # whose group_size is -1 for a whole row
            yield from find_oddities(value, entry.get("nested", {}).get(key, {}).get("type", ""))
        elif (least := find_least(key)) is not None and is_below(value, least):
            yield f"{key} is {shorten(value)}, a whole number from {least} is expected"
        elif LAYERS.fullmatch(key) and any(is_number(n) and n > MOST_LAYERS for n in list_values(value)):
            yield f"{key} is {shorten(value)}, at most {MOST_LAYERS} is expected"


def find_other_kind(key: str, value: object, default: object) -> str | None:
    """What a value should be that is of another kind than Transformers takes; ``default`` is its config class's own."""
    if RATES.fullmatch(key):
        return None if all(is_number(number) and number >= 0 for number in list_values(value)) else "a number from 0"
    if isinstance(default, bool):
        return None if isinstance(value, bool) else "true or false"
    if FACTORS.fullmatch(key):
        return None if is_number(value) else "a number"
    if key.endswith("rank") and value == "auto":  # by the width: Mamba's and Jamba's
        return None
    if isinstance(default, int) or (NUMBERS.fullmatch(key) and isinstance(value, str)):
        return None if all(is_count(number, -math.inf, math.inf) for number in list_values(value)) else "a whole number"
    if isinstance(default, float):
        return None if is_number(value) else "a number"
    if isinstance(default, str):
        return None if isinstance(value, str) or is_number(value) else "text or a number"  # "auto", or a rank
    return None


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is one that can be computed with: not a whole one of so many digits that no float holds it."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def name_kinds(kinds: type | tuple[type, ...]) -> str:
    names: dict[type, str] = {str: "text", dict: "an object", list: "a list", type(None): "null"}
    return " or ".join(names[kind] for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))


def list_values(value: object) -> list:
    return value if isinstance(value, list) else [value]


def find_least(key: str) -> int | None:
    """Of a size that ``COUNTS`` does not name; ``None`` for what may be anything."""
    if NEVER_0.fullmatch(key):
        return 1
    return 0 if NEVER_BELOW_0.fullmatch(key) else None


def is_below(value: object, least: int) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value < least


def read_quant_method(settings: dict) -> object:
    """Checkpoints of the first bitsandbytes releases say only ``load_in_4bit`` or ``load_in_8bit``."""
    old = settings.get("load_in_4bit") or settings.get("load_in_8bit")
    return settings.get("quant_method") or ("bitsandbytes" if old else None)


def is_count(value: object, least: float, most: float) -> bool:
    return is_number(value) and least <= value <= most and value == int(value)


def shorten(value: object) -> str:
    try:
        text = json.dumps(value)
    except ValueError:  # a product of such: Python writes no more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= 60 else text[:57] + "..."


def normalize_config(config: dict) -> dict:
    """The config with 1e9 read as the whole number that it is, and the quantization named."""
    normalized = {}
    for key, value in config.items():
        if key == "quantization_config" and value:
            normalized[key] = value | {"quant_method": read_quant_method(value)}
        elif isinstance(value, dict):
            normalized[key] = normalize_config(value)
        else:
            normalized[key] = int(value) if key in COUNTS and isinstance(value, float) else value
    return normalized


def find_implausible(spec: ModelSpec) -> Iterator[str]:
    """What no model can be, whichever keys of the config it came from."""
    for field in fields(spec):
        value = getattr(spec, field.name)
        if field.type in ("int", "int | None") and value is not None and not is_count(value, 0, 1 << 62):
            yield f"{field.name} would be {shorten(value)}"
    heads = ("heads", "kv_heads", "head_dim") if spec.attended else ()  # what keeps a state alone has none
    for name in ("layers", "hidden", *heads, "params"):
        if getattr(spec, name) == 0:
            yield f"{name} would be 0"
    if spec.experts and not 1 <= spec.experts_per_token <= spec.experts:
        yield f"a token would go to {spec.experts_per_token} of {spec.experts} experts (num_experts_per_tok)"
    feeds = spec.ffn or spec.expert_ffn or spec.shared_expert_ffn
    if spec.basis == "config" and spec.kind == "decoder" and spec.attended and not feeds:
        yield "its feed-forward layers would be 0 wide (intermediate_size)"
    if spec.basis == "config" and spec.kv_heads and spec.heads % spec.kv_heads:
        yield f"{spec.heads} attention heads cannot share {spec.kv_heads} key-value heads"
