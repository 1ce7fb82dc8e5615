"""Attention over parts of a sequence: each process gathers all keys and values, and attends with its own queries."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right

NAME = "gathered_sequence"
"""Under which Transformers finds it."""


class SequenceAttention:
    """Each part is an early and a late piece of the sequence: of causal attention all processes have as much."""

    def __init__(self, group: dist.ProcessGroup, part: int, parts: int):
        self.group, self.parts = group, parts
        self.pieces = (part, 2 * parts - 1 - part)

    def take_part(self, tensor: torch.Tensor) -> torch.Tensor:
        pieces = tensor.chunk(2 * self.parts, dim=1)
        return torch.cat([pieces[number] for number in self.pieces], dim=1)

    def __call__(self, module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
        """Queries (batch, heads, tokens, width) of both pieces, each over all that stands before its end."""
        query, key, value = cast_as_autocast((query, key, value))
        key, value = (GatherSequence.apply(tensor, self.group, self.parts) for tensor in (key, value))
        length, outputs = query.shape[2] // 2, []
        for piece, queries in zip(self.pieces, query.chunk(2, dim=2), strict=True):
            end = (piece + 1) * length
            keys, values = (repeat_heads(tensor[:, :, :end], query.shape[1]) for tensor in (key, value))
            mask = causal_lower_right(length, end)
            output = F.scaled_dot_product_attention(
                queries.contiguous(), keys, values, attn_mask=mask, dropout_p=dropout, scale=scaling
            )
            outputs.append(output)
        return torch.cat(outputs, dim=2).transpose(1, 2).contiguous(), None


def cast_as_autocast(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Rotary embeddings of float32 leave queries and keys in float32, and values not.

    Autocast itself would come too late: they would be sent as float32, and it does not see a call with a causal bias.
    """
    kept = list(tensors)
    kind = kept[0].device.type
    return [tensor.to(torch.get_autocast_dtype(kind)) for tensor in kept] if torch.is_autocast_enabled(kind) else kept


def repeat_heads(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Key-value heads that several query heads share, once for each."""
    return tensor.repeat_interleave(heads // tensor.shape[1], dim=1)


class GatherSequence(torch.autograd.Function):
    """The parts of all processes, in the order of the sequence; gradients are summed, and each gets its part's."""

    @staticmethod
    def forward(ctx, tensor: torch.Tensor, group: dist.ProcessGroup, parts: int) -> torch.Tensor:
        ctx.group, ctx.parts = group, parts
        gathered = tensor.new_empty(parts * tensor.shape[0], *tensor.shape[1:])
        dist.all_gather_into_tensor(gathered, tensor.contiguous(), group=group)
        early, late = zip(*(part.chunk(2, dim=2) for part in gathered.chunk(parts)), strict=True)
        return torch.cat([*early, *reversed(late)], dim=2)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):
        pieces = gradient.chunk(2 * ctx.parts, dim=2)
        by_part = [torch.cat([pieces[n], pieces[-1 - n]], dim=2) for n in range(ctx.parts)]
        own = torch.empty_like(by_part[0])
        dist.reduce_scatter_tensor(own, torch.cat(by_part), group=ctx.group)
        return own, None, None
