"""Arithmetic of a pass, operations counted as two a multiply-add; what MFU is measured against."""

from __future__ import annotations

from generator.cost.shape import Shape


def forward_flops(shape: Shape, tokens: float, seq_len: float) -> float:
    """Products of the blocks and the output layer, and full (unmasked) attention, as PyTorch's flop counter counts."""
    linear = shape.layers * sum(2.0 * x.params * x.share for x in shape.linears)
    attention = shape.layers * 4.0 * seq_len * shape.query
    return tokens * (linear + attention + 2.0 * shape.head_outputs * shape.hidden)


def step_flops(shape: Shape, tokens: float, seq_len: float, *, recomputed_share: float = 0.0) -> float:
    """Forward, backward (twice the forward) and what checkpointing computes again (blocks only)."""
    forward = forward_flops(shape, tokens, seq_len)
    head = tokens * 2.0 * shape.head_outputs * shape.hidden
    return 3.0 * forward + recomputed_share * (forward - head)
