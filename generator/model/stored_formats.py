"""How the weights of a checkpoint that is quantized already are packed, by its quantization_config: the cost model's name for it.

Sources: the config classes of Transformers 5.23 (utils/quantization_config.py) and compressed-tensors' QuantizationArgs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

INTEGERS = {4: "gptq-4bit", 8: "int8"}
FLOATS = {4: "nvfp4", 8: "float8"}


def read_stored_format(quantization: Mapping[str, Any]) -> str | None:
    """``None``: packed in a way whose bytes and products perfgen has no formula for."""
    method = quantization.get("quant_method")
    if method in ("gptq", "awq", "auto-round"):
        return INTEGERS.get(quantization.get("bits", 4))
    if method == "compressed-tensors":
        return read_groups(quantization.get("config_groups"))
    if method == "gguf":
        return find_gguf_format(str(quantization.get("kind")))
    if method == "bitsandbytes":
        return "nf4" if quantization.get("load_in_4bit") else "int8"
    return {"fp8": "float8", "fbgemm_fp8": "float8", "mxfp4": "mxfp4"}.get(str(method))


def has_stored_offsets(quantization: Mapping[str, Any]) -> bool:
    """Whether GPTQ rounded from a zero of each group's own, and not around 0 (``sym`` of its config)."""
    return quantization.get("quant_method") == "gptq" and quantization.get("sym") is False


def read_stored_group(quantization: Mapping[str, Any]) -> int:
    """Inputs of a layer whose weights share a scale; 1: all of them, or how many is not known."""
    blocks = quantization.get("weight_block_size")
    weights = [
        quantization.get("group_size"),
        quantization.get("q_group_size"),
        *(blocks if isinstance(blocks, list) else []),
    ]
    groups = quantization.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        of_group = group.get("weights") if isinstance(group, Mapping) else None
        weights.append(of_group.get("group_size") if isinstance(of_group, Mapping) else None)
    return math.lcm(*(size for size in weights if isinstance(size, int) and size > 0))


def find_gguf_format(kind: str) -> str:
    """By the bits of ggml's type, what llama.cpp multiplies about as fast; its bytes are the header's."""
    if kind in ("F32", "F64", "F16", "BF16"):
        return "none"
    return "int8" if kind.startswith(("Q8", "Q6", "Q5")) else "int4"


def read_stored_bytes(quantization: Mapping[str, Any]) -> int | None:
    """Of all tensors, where the checkpoint's own header says them."""
    return quantization.get("bytes") if quantization.get("quant_method") == "gguf" else None


def read_groups(groups: object) -> str | None:
    """Of compressed-tensors' groups of layers, where all of them are packed alike."""
    if not isinstance(groups, Mapping):
        return None
    packed = set()
    for group in groups.values():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if not isinstance(weights, Mapping):
            return None
        packed.add((FLOATS if weights.get("type") == "float" else INTEGERS).get(weights.get("num_bits", 0)))
    return packed.pop() if len(packed) == 1 else None
