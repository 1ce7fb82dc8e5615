"""A model packed into 4 bits as the formats of checkpoints have it, and its plain twin: for tests that load them.

Written from what the formats are (AutoGPTQ's and AutoAWQ's layouts, compressed-tensors' pack-quantized): the scales are powers of two,
so that the plain weights have the packed ones exactly, in bf16 too.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

GROUP = 64
"""input columns that share a scale"""
PER_WORD = range(8)
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
WEIGHTS = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP, "symmetric": True, "dynamic": False}
COMPRESSED = {"targets": ["Linear"], "weights": WEIGHTS, "input_activations": None, "output_activations": None}
CONFIGS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True, "lm_head": False},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True},
    "pack-quantized": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": COMPRESSED},
    },
}


def write_checkpoint(source: Path, folder: Path, form: str) -> Path:
    """The model of ``source`` with its projections in 4 bits, or their exact values in bf16 (``plain``)."""
    import torch
    from safetensors.torch import load_file, save_file

    folder.mkdir(parents=True)
    for file in source.iterdir():
        if file.suffix in (".json", ".jinja", ".model") and not file.name.startswith("model"):
            shutil.copy(file, folder)
    tensors = {}
    for name, weight in load_file(source / "model.safetensors").items():
        if name.endswith("_proj.weight"):
            tensors |= pack(name.removesuffix(".weight"), weight.float(), form)
        else:
            tensors[name] = weight.to(torch.bfloat16)
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((source / "config.json").read_text()) | {"dtype": "bfloat16"}
    if CONFIGS[form]:
        config["quantization_config"] = CONFIGS[form]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def pack(name: str, weight: Any, form: str) -> dict[str, Any]:
    """One projection: integers of -8 to 7, and the scales of their groups."""
    import torch

    outputs, inputs = weight.shape
    groups = weight.reshape(outputs, -1, GROUP)
    scales = 2.0 ** torch.ceil(torch.log2(groups.abs().amax(-1, keepdim=True).clamp(min=1e-5) / 7.5))
    rounded = (groups / scales).round().clamp(-8, 7)
    shifted = (rounded + 8).reshape(outputs, inputs).to(torch.int64)
    scales = scales.squeeze(-1)
    if form == "plain":
        return {f"{name}.weight": (rounded * scales[..., None]).reshape(outputs, inputs).to(torch.bfloat16)}
    if form == "pack-quantized":
        shape = torch.tensor([outputs, inputs])
        packed = {
            "weight_packed": fill_words(shifted),
            "weight_scale": scales.to(torch.bfloat16),
            "weight_shape": shape,
        }
    else:
        zero = torch.full((inputs // GROUP, outputs), 7 if form == "gptq" else 8)  # GPTQ's files have one less
        packed = {"scales": scales.T.to(torch.float16)}
        if form == "gptq":
            of_group = (torch.arange(inputs) // GROUP).to(torch.int32)
            packed |= {"qweight": fill_words(shifted).T, "qzeros": fill_words(zero), "g_idx": of_group}
        else:
            packed |= {"qweight": fill_words(shifted.T, AWQ_ORDER), "qzeros": fill_words(zero, AWQ_ORDER)}
    return {f"{name}.{part}": tensor for part, tensor in packed.items()}


def fill_words(values: Any, order: Any = PER_WORD) -> Any:
    """Eight of the last axis in each 32-bit word, the first in its lowest bits."""
    import torch

    values = values.to(torch.int64).reshape(*values.shape[:-1], -1, 8)
    words = sum(values[..., number] << (4 * place) for place, number in enumerate(order))
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
