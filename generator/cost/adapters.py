"""What DoRA adds to low-rank adapters: a trained magnitude of each output, and the norm of the whole adapted weight.

Follows ``peft/tuners/lora/dora.py`` (0.21.2): every forward pass makes the low-rank product as large as the weight, out of an identity
matrix of its inputs, adds it to a float32 copy of the weight, and takes the norm of its rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from generator.case.optimizer_states import SMALLEST_PACKED
from generator.cost import constants as c
from generator.cost.device import Rates
from generator.cost.execution import BYTES, Execution
from generator.cost.shape import Linear, Shape, list_factors, select_adapted


def has_magnitudes(run: Execution) -> bool:
    return run.train == "lora" and run.adapter == "dora"


def count_magnitudes(shape: Shape, run: Execution) -> float:
    """Trained parameters beside the low-rank factors, of the whole model: one of each output."""
    if not has_magnitudes(run):
        return 0.0
    return float(shape.layers * sum(x.outputs * x.count for x in select_adapted(shape, run.lora_targets)))


def count_unpacked(shape: Shape, run: Execution) -> float:
    """Trained parameters in tensors so small that 8-bit optimizers keep their states in 32 bits."""
    factors = list_factors(shape, run.lora_targets, run.lora_rank)
    small = sum(size * number for size, number in factors if size < SMALLEST_PACKED)
    return small + count_magnitudes(shape, run)  # one for each output: few linears have as many


def count_magnitude_bytes(run: Execution, compute: float, adapted: Sequence[Linear]) -> float:
    """Bytes per token kept for the gradient of the magnitudes: the outputs of the weight and of the adapter, and their difference."""
    return 2 * compute * sum(x.outputs for x in adapted) if has_magnitudes(run) else 0.0


def compute_norm_bytes(shape: Shape, run: Execution) -> float:
    """Of the largest adapted weight, while its norm is taken."""
    if not has_magnitudes(run):
        return 0.0
    identity = BYTES[run.compute_dtype]  # what the low-rank product multiplied is kept until its result is let go
    copies = c.NORM_COPIES * BYTES["float32"]
    adapted = select_adapted(shape, run.lora_targets)
    return max(copies * x.inputs * x.outputs + identity * x.inputs**2 for x in adapted)


def compute_norm_seconds(adapted: Sequence[Linear], run: Execution, rates: Rates, passes: float) -> float:
    """Of a block: the low-rank product with a unit matrix of the inputs in the place of tokens, and the traffic of the norm."""
    if not has_magnitudes(run):
        return 0.0
    operations = sum(2.0 * run.lora_rank * x.inputs * (x.inputs + x.outputs) for x in adapted)
    moved = sum(c.NORM_TRAFFIC * x.inputs * x.outputs + c.IDENTITY_TRAFFIC * x.inputs**2 for x in adapted)
    return passes * (operations / rates.product(run.compute_dtype, run.tf32) + moved / rates.elementwise_bytes_per_s)
