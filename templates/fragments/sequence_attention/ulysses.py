"""Attention over parts of a sequence (Ulysses): parts of all heads become all parts of some heads, and back."""

import torch
import torch.distributed as dist
from torch.nn import functional as F

NAME = "exchanged_heads"
"""Under which Transformers finds it."""


class SequenceAttention:
    """Each process has a run of tokens, and for attention whole sequences of its heads."""

    def __init__(self, group: dist.ProcessGroup, part: int, parts: int):
        self.group, self.part, self.parts = group, part, parts

    def take_part(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.chunk(self.parts, dim=1)[self.part].contiguous()

    def __call__(self, module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
        """Queries (batch, heads, tokens, width) of this part."""
        query, key, value = (Exchange.apply(tensor, 1, 2, self.group, self.parts) for tensor in (query, key, value))
        output = F.scaled_dot_product_attention(
            query,
            key,
            value,
            is_causal=True,
            dropout_p=dropout,
            scale=scaling,
            enable_gqa=query.shape[1] > key.shape[1],
        )
        return Exchange.apply(output, 2, 1, self.group, self.parts).transpose(1, 2).contiguous(), None


class Exchange(torch.autograd.Function):
    """Cut along one dimension, sent to all, put together along another; its gradient goes the way back."""

    @staticmethod
    def forward(ctx, tensor: torch.Tensor, cut: int, joined: int, group: dist.ProcessGroup, parts: int) -> torch.Tensor:
        ctx.cut, ctx.joined, ctx.group, ctx.parts = cut, joined, group, parts
        return exchange(tensor, cut, joined, group, parts)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):
        return exchange(gradient, ctx.joined, ctx.cut, ctx.group, ctx.parts), None, None, None, None


def exchange(tensor: torch.Tensor, cut: int, joined: int, group: dist.ProcessGroup, parts: int) -> torch.Tensor:
    sent = torch.stack(tensor.chunk(parts, dim=cut))  # one for each process
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return torch.cat(received.unbind(), dim=joined)
