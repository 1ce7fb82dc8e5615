"""Oracle: arithmetic of a pass, operations counted as two per multiply-add; held against PyTorch's own counter."""

from __future__ import annotations

from generator.cost.shape import Shape, count_lora_params


def forward_flops(shape: Shape, tokens: float, seq_len: float) -> float:
    """Products of the blocks and the output layer, and full (unmasked) attention, as PyTorch's flop counter counts."""
    linear = shape.layers * sum(2.0 * x.params * x.share for x in shape.linears)
    attention = shape.layers * 4.0 * seq_len * shape.query
    return tokens * (linear + attention + 2.0 * shape.head_outputs * shape.hidden)


def step_flops(shape: Shape, tokens: float, seq_len: float, *, recomputed_share: float = 0.0) -> float:
    """Forward, backward (twice the forward) and what checkpointing computes again: the blocks, up to the last tensor that the
    backward pass needs (torch.utils.checkpoint stops there). Where nothing follows the last product, that is its input."""
    forward = forward_flops(shape, tokens, seq_len)
    again = forward - tokens * 2.0 * shape.head_outputs * shape.hidden
    if not (shape.post_norms or shape.ends_in_norm or shape.dropout or shape.experts):
        again -= tokens * shape.layers * sum(2.0 * x.params for x in shape.linears if x.role == "down")
    return 3.0 * forward + recomputed_share * again


def lora_step_flops(
    shape: Shape,
    tokens: float,
    seq_len: float,
    *,
    rank: int,
    targets: str | tuple[str, ...],
    recomputed_share: float = 0.0,
) -> float:
    """As ``step_flops`` with frozen weights: linears have no product for their own gradient, adapters have all three."""
    forward = forward_flops(shape, tokens, seq_len)
    head = tokens * 2.0 * shape.head_outputs * shape.hidden
    attention = tokens * shape.layers * 4.0 * seq_len * shape.query
    adapters = tokens * 2.0 * count_lora_params(shape, targets, rank)
    return 2.0 * forward + attention + 3.0 * adapters + recomputed_share * (forward - head + adapters)
