"""Seconds that collectives add to a step: ring volume over the slowest link, less what hides behind compute."""

from __future__ import annotations

from generator.cost import constants as c
from generator.cost.device import Rates
from generator.cost.execution import BYTES, Execution
from generator.cost.memory import Static, quantized_bytes
from generator.cost.shape import Shape


def ring_seconds(total_bytes: float, ranks: int, rates: Rates, nodes: int = 1, messages: float = 1.0) -> float:
    """All-gather or reduce-scatter of ``total_bytes`` over ``ranks``; an all-reduce is both."""
    if ranks <= 1:
        return 0.0
    rate = rates.link_bytes_per_s if nodes <= 1 else min(rates.link_bytes_per_s, rates.network_bytes_per_s)
    volume = total_bytes * (ranks - 1) / ranks / (rate * c.COLLECTIVE_REALISED)
    return volume + messages * (ranks - 1) * c.COLLECTIVE_LATENCY_SECONDS


def communication_seconds(shape: Shape, run: Execution, rates: Rates, fixed: Static, compute_seconds: float) -> float:
    """What an optimizer step waits for: gathers and reductions beyond what overlaps with ``compute_seconds``."""
    if run.dp <= 1 or run.strategy == "none":
        return 0.0
    compute = BYTES[run.compute_dtype]
    full = run.train == "full"
    trained = fixed.trained
    gradient = trained * (compute if full else 4.0)
    weights = shape.params * compute if run.quant == "none" else quantized_bytes(shape, run)
    n = run.dp
    each = 0.0
    once = 0.0
    if run.strategy in ("fsdp_full_shard", "zero3", "hsdp", "fsdp_shard_grad_op"):
        gathers = 1.0 if run.strategy == "fsdp_shard_grad_op" else 2.0 + (1.0 if run.checkpoint_every else 0.0)
        each = ring_seconds(weights, n, rates, messages=shape.layers) * gathers
        each += ring_seconds(gradient, n, rates, messages=shape.layers)
    else:
        once = 2 * ring_seconds(gradient, n, rates, messages=gradient / 25e6)
    hidden_share = c.OVERLAP_SHARE * compute_seconds
    per_micro = max(each - hidden_share, (1 - c.OVERLAP_SHARE) * each)
    return run.accumulation * per_micro + max(once - hidden_share, (1 - c.OVERLAP_SHARE) * once)
