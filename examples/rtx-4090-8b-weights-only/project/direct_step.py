"""The next token of several answers by a decoder of Llama's kind: its own products, and nothing around them.

Of a small model on a CPU most of a step is not the products: arguments that pass through every module, masks, norms and
rotary embeddings of many operators each.
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.functional import rms_norm, scaled_dot_product_attention
from transformers import PreTrainedModel
from transformers.cache_utils import CacheLayerMixin


def compute_next_logits(
    model: PreTrainedModel, rows: Sequence[CacheLayerMixin], tokens: Sequence[int], pasts: Sequence[int]
) -> torch.Tensor:
    """Of one more token in each of the first rows, which hold ``pasts`` tokens; it joins them there."""
    decoder = model.model
    positions = torch.tensor(pasts)[:, None]
    hidden = decoder.embed_tokens(torch.tensor(tokens))
    cos, sin = decoder.rotary_emb(hidden, positions)
    half = sin.shape[-1] // 2
    angles = cos, torch.cat((-sin[..., :half], sin[..., half:]), -1)
    mask = make_mask(positions, hidden.dtype) if min(pasts) < max(pasts) else None
    for layer, row in zip(decoder.layers, rows, strict=True):
        hidden = hidden + attend(layer.self_attn, normalize(layer.input_layernorm, hidden), row, pasts, angles, mask)
        hidden = hidden + layer.mlp(normalize(layer.post_attention_layernorm, hidden))
    return model.lm_head(normalize(decoder.norm, hidden))


class PackedLinear(nn.Module):
    """A product with weights as oneDNN multiplies them: else it arranges them anew for each token."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self.bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(hidden, self.weight, self.bias, "none", [], "")


def pack_products(model: PreTrainedModel) -> None:
    """All products in bf16, where the processor has them. The tied weights of an embedding stay as they are beside."""
    if model.dtype != torch.bfloat16 or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, PackedLinear(child))


def attend(
    attention: nn.Module,
    hidden: torch.Tensor,
    row: CacheLayerMixin,
    pasts: Sequence[int],
    angles: tuple[torch.Tensor, torch.Tensor],
    mask: torch.Tensor | None,
) -> torch.Tensor:
    count, size, longest = len(pasts), attention.head_dim, max(pasts) + 1
    queries = attention.q_proj(hidden).view(count, -1, size)
    keys = attention.k_proj(hidden).view(count, -1, size)
    values = attention.v_proj(hidden).view(count, -1, size)
    if hasattr(attention, "q_norm"):
        queries, keys = normalize(attention.q_norm, queries), normalize(attention.k_norm, keys)
    heads, groups = queries.shape[1], keys.shape[1]
    # the halves of a head change places, and the first sine is negative: rotate_half
    both, (cos, sin) = torch.cat((queries, keys), 1), angles
    both = torch.addcmul(both * cos, both.roll(size // 2, -1), sin)
    queries, keys = both.split((heads, groups), 1)
    if count == 1:
        row.keys[0, :, pasts[0]] = keys[0]
        row.values[0, :, pasts[0]] = values[0]
    else:
        each = torch.arange(count), slice(None), torch.tensor(pasts)
        row.keys[each] = keys
        row.values[each] = values
    # heads that share keys are queries of one head
    attended = scaled_dot_product_attention(
        queries.reshape(count, groups, heads // groups, size),
        row.keys[:count, :, :longest],
        row.values[:count, :, :longest],
        attn_mask=mask,
        scale=attention.scaling,
    )
    return attention.o_proj(attended.reshape(count, -1))


def normalize(norm: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    return rms_norm(hidden, norm.weight.shape, norm.weight, norm.variance_epsilon)


def make_mask(positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What of the longest row each row holds: 0, and minus infinity behind."""
    unseen = torch.arange(int(positions.max()) + 1) > positions
    return torch.zeros(unseen.shape, dtype=dtype).masked_fill(unseen, -torch.inf)[:, None, None]
