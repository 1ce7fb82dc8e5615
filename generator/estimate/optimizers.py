"""The optimizers that a table may name: those of the techniques, and others that published runs or other libraries have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from generator.case.optimizer_states import ADAM, BLOCKWISE4, NO_UPDATE, OptimizerState, pack_in_8_bits
from generator.techniques.base import list_axes
from generator.techniques.optimizers import Optimizer

ELSEWHERE: Mapping[str, OptimizerState] = {
    "none": NO_UPDATE,
    "adam": ADAM,
    "paged-adamw": OptimizerState(
        fixed_bytes=8,
        paged=True,
        source="bitsandbytes keeps both moments in 32 bits, in pages that may move to the host",
    ),
    "adamw-4bit": OptimizerState(
        fixed_bytes=1 + 2 * BLOCKWISE4,
        unpacked_bytes=8,
        step_passes=5,
        source="4-bit moments, a scale per block of 128",
    ),
    "sgd-momentum": OptimizerState(
        full_states=1, step_passes=5, foreach=True, source="one momentum buffer (torch.optim.SGD)"
    ),
    "adagrad": OptimizerState(full_states=1, step_passes=5, source="one accumulator (torch.optim.Adagrad)"),
    "rmsprop": OptimizerState(full_states=1, step_passes=5, source="one accumulator (torch.optim.RMSprop)"),
    "rmsprop-8bit": pack_in_8_bits(1),
    "lion": OptimizerState(
        full_states=1, step_passes=5, foreach=True, source="Lion keeps one momentum (Chen et al. 2023)"
    ),
    "paged-lion-8bit": replace(pack_in_8_bits(1), paged=True),
    "ademamix-8bit": pack_in_8_bits(3),
    "paged-ademamix-8bit": replace(pack_in_8_bits(3), paged=True),
    "galore-8bit": OptimizerState(rank=128, moments_8bit=True, step_passes=9, source="GaLore with 8-bit moments"),
    "muon": OptimizerState(full_states=1, step_passes=12, source="Muon keeps one momentum (Jordan et al. 2024)"),
    "grokadamw": OptimizerState(full_states=3, step_passes=9, source="AdamW and a gradient average"),
}
"""by name, those that no project is made with"""


def list_optimizer_states() -> Mapping[str, OptimizerState]:
    """What each keeps, by name."""
    members = (technique for axis in list_axes() for technique in axis.members)
    return {**ELSEWHERE, **{each.name: each.state for each in members if isinstance(each, Optimizer)}}
