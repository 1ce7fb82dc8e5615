"""Bytes an optimizer keeps a trained parameter, and the bytes its step moves and allocates."""

from __future__ import annotations

from dataclasses import dataclass

BLOCKWISE = 4 / 256
"""bitsandbytes keeps one fp32 scale a block of 256 for each 8-bit state"""
AO_BLOCKWISE8 = 4 / 256
AO_BLOCKWISE4 = 4 / 128


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerState:
    """``full_states`` live in the parameter's dtype, ``fixed_bytes`` are a parameter whatever its dtype.

    ``factored`` states grow with rows + columns instead of their product; ``rank`` states with a projection's rank.
    ``stores_gradients`` is False where the update is fused into the backward pass. ``paged`` states may move to the host.
    ``step_passes`` is how many times the step reads or writes a parameter-sized array.
    """

    full_states: float = 0.0
    fixed_bytes: float = 0.0
    factored: bool = False
    rank: bool = False
    stores_gradients: bool = True
    paged: bool = False
    step_passes: float = 7.0
    source: str = "optimizer definition"


ADAM = "Adam keeps two moments (Kingma and Ba), in the parameter's dtype in torch.optim"
BNB = "bitsandbytes 8-bit optimizers: one byte a state and a fp32 scale a block of 256 (Dettmers et al. 2022)"

OPTIMIZER_STATES: dict[str, OptimizerState] = {
    "adamw": OptimizerState(full_states=2, source=ADAM),
    "adam": OptimizerState(full_states=2, source=ADAM),
    "adamw-8bit": OptimizerState(fixed_bytes=2 + 2 * BLOCKWISE, step_passes=5, source=BNB),
    "paged-adamw-8bit": OptimizerState(fixed_bytes=2 + 2 * BLOCKWISE, paged=True, step_passes=5, source=BNB),
    "paged-adamw": OptimizerState(fixed_bytes=8, paged=True, source=BNB),
    "adamw-torchao-8bit": OptimizerState(
        fixed_bytes=2 + 2 * AO_BLOCKWISE8, step_passes=5, source="torchao.optim AdamW8bit, block size 256"
    ),
    "adamw-torchao-4bit": OptimizerState(
        fixed_bytes=1 + 2 * AO_BLOCKWISE4, step_passes=5, source="torchao.optim AdamW4bit, block size 128"
    ),
    "adafactor": OptimizerState(
        factored=True, step_passes=9, source="Adafactor without momentum: row and column means (Shazeer and Stern 2018)"
    ),
    "none": OptimizerState(step_passes=0, source="no update: forward and backward pass only"),
    "sgd": OptimizerState(step_passes=3, source="torch.optim.SGD without momentum keeps nothing"),
    "sgd-momentum": OptimizerState(full_states=1, step_passes=5, source="one momentum buffer"),
    "adagrad": OptimizerState(full_states=1, step_passes=5, source="one accumulator"),
    "rmsprop": OptimizerState(full_states=1, step_passes=5, source="one accumulator"),
    "rmsprop-8bit": OptimizerState(fixed_bytes=1 + BLOCKWISE, step_passes=4, source=BNB),
    "lion": OptimizerState(full_states=1, step_passes=5, source="Lion keeps one momentum (Chen et al. 2023)"),
    "lion-8bit": OptimizerState(fixed_bytes=1 + BLOCKWISE, step_passes=4, source=BNB),
    "paged-lion-8bit": OptimizerState(fixed_bytes=1 + BLOCKWISE, paged=True, step_passes=4, source=BNB),
    "ademamix": OptimizerState(
        full_states=3, step_passes=9, source="AdEMAMix keeps three moments (Pagliardini et al.)"
    ),
    "ademamix-8bit": OptimizerState(fixed_bytes=3 + 3 * BLOCKWISE, step_passes=6, source=BNB),
    "paged-ademamix-8bit": OptimizerState(fixed_bytes=3 + 3 * BLOCKWISE, paged=True, step_passes=6, source=BNB),
    "galore": OptimizerState(rank=True, step_passes=9, source="GaLore: two moments of rank r and a projection"),
    "galore-8bit": OptimizerState(rank=True, step_passes=9, source="GaLore with 8-bit moments"),
    "apollo": OptimizerState(rank=True, step_passes=8, source="APOLLO: moments in a random projection of rank r"),
    "muon": OptimizerState(full_states=1, step_passes=12, source="Muon keeps one momentum (Jordan et al. 2024)"),
    "lomo": OptimizerState(stores_gradients=False, step_passes=3, source="LOMO updates in the backward pass"),
    "adalomo": OptimizerState(
        stores_gradients=False, factored=True, step_passes=6, source="AdaLomo: factored second moment, fused update"
    ),
    "schedule-free": OptimizerState(full_states=2, step_passes=8, source="AdamWScheduleFree: z and one moment"),
    "stable-adamw": OptimizerState(full_states=2, step_passes=8, source=ADAM),
    "grokadamw": OptimizerState(full_states=3, step_passes=9, source="AdamW and a gradient average"),
}
OPTIMIZER_STATES["adamw-4bit"] = OPTIMIZER_STATES["adamw-torchao-4bit"]
OPTIMIZER_STATES["sgd_momentum"] = OPTIMIZER_STATES["sgd-momentum"]

RANK = 128
"""default projection rank of GaLore and APOLLO in the Trainer's optim_args (galore-torch 1.0)"""


def state_bytes(name: str, params: float, dtype_bytes: float, hidden: int) -> float:
    """Bytes of optimizer state for ``params`` trained parameters stored with ``dtype_bytes`` each."""
    kind = OPTIMIZER_STATES[name]
    total = params * (kind.full_states * dtype_bytes + kind.fixed_bytes)
    if kind.factored:
        total += params * 2 * 4 / max(hidden, 1)
    if kind.rank:
        moments = 2 if name.endswith("8bit") else 2 * dtype_bytes
        total += params * min(1.0, RANK / max(hidden, 1)) * (moments + dtype_bytes)
    return total
