"""Seconds that collectives add to a step: ring volume over the slowest link, less what hides behind compute."""

from __future__ import annotations

import math

from generator.cost import constants as c
from generator.cost.device import Rates
from generator.cost.execution import BYTES, Execution
from generator.cost.memory import Static, quantized_bytes
from generator.cost.shape import Shape


def ring_seconds(
    total_bytes: float, ranks: int, rates: Rates, messages: float = 1.0, share: float | None = None
) -> float:
    """All-gather or reduce-scatter of ``total_bytes`` over ``ranks``; an all-reduce is both.

    ``share`` of the link's rate is reached: ``COLLECTIVE_REALISED`` where the device does nothing else.
    """
    if ranks <= 1:
        return 0.0
    rate = rates.link_bytes_per_s * (c.COLLECTIVE_REALISED if share is None else share)
    volume = total_bytes * (ranks - 1) / ranks / rate
    return volume + messages * math.log2(ranks) * c.COLLECTIVE_LATENCY_SECONDS


def tensor_parallel_seconds(shape: Shape, run: Execution, rates: Rates, tokens: float, again: float) -> float:
    """Two all-reduces of the hidden states a block and pass (after attention and after the feed-forward); nothing hides them."""
    if run.tp <= 1:
        return 0.0
    volume = tokens * shape.hidden * BYTES[run.compute_dtype]
    return 2 * (2.0 + again) * 2 * ring_seconds(volume, run.tp, rates)


def communication_seconds(shape: Shape, run: Execution, rates: Rates, fixed: Static, compute_seconds: float) -> float:
    """What an optimizer step waits for: gathers and reductions beyond what overlaps with ``compute_seconds``."""
    pipeline = 0.0
    if run.pp > 1:
        volume = run.micro_batch * run.seq_len * shape.hidden * BYTES[run.compute_dtype]
        hops = volume / (rates.link_bytes_per_s * c.COLLECTIVE_REALISED) + c.COLLECTIVE_LATENCY_SECONDS
        pipeline = 2 * hops * (run.accumulation + run.pp - 1)
    if run.dp <= 1 or run.strategy == "none":
        return pipeline
    compute = BYTES[run.compute_dtype]
    full = run.train == "full"
    trained = fixed.trained
    gradient = trained * (compute if full else 4.0) / (run.tp * run.pp)
    weights = shape.params * compute if run.quant == "none" else quantized_bytes(shape, run)
    n = run.dp
    each = 0.0
    once = 0.0
    if run.strategy in ("fsdp_full_shard", "zero3", "hsdp", "fsdp_shard_grad_op"):
        gathers = 1.0 if run.strategy == "fsdp_shard_grad_op" else 2.0 + (1.0 if run.checkpoint_every else 0.0)
        each = ring_seconds(weights, n, rates, shape.layers, c.OVERLAPPED_REALISED) * gathers
        each += ring_seconds(gradient, n, rates, shape.layers, c.OVERLAPPED_REALISED)
    else:
        once = 2 * ring_seconds(gradient, n, rates, gradient / 25e6, c.OVERLAPPED_REALISED)
    units = 0.0
    if (
        run.strategy.startswith("fsdp")
        and run.fsdp_version == 1
        and run.train == "lora"
        and "foak" not in run.fused_kernels
    ):
        collectives = 3.0 + (1.0 if run.checkpoint_every else 0.0)
        units = 2 * shape.layers * len(fixed.adapted) * collectives * c.UNIT_SECONDS
    hidden_share = c.OVERLAP_SHARE * compute_seconds
    per_micro = max(each - hidden_share, (1 - c.OVERLAP_SHARE) * each)
    return pipeline + run.accumulation * (per_micro + units) + max(once - hidden_share, (1 - c.OVERLAP_SHARE) * once)
