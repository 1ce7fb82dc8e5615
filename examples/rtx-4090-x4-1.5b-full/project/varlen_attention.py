"""Attention over the rows of a batch that stand one after the other: the flash kernel for them that PyTorch brings."""

import torch
from torch import nn
from torch.nn.attention import varlen
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from row_attention import attend_row_by_row, mask_unless_flattened


def attend_within_rows(model: PreTrainedModel) -> None:
    """Once the model is loaded; saved files do not know of it."""
    AttentionInterface.register("varlen", attend_varlen)
    AttentionMaskInterface.register("varlen", mask_unless_flattened)
    model.set_attn_implementation("varlen")


def attend_varlen(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    cu_seq_lens_q: torch.Tensor | None = None,
    max_length_q: int = 0,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **kwargs,
) -> tuple[torch.Tensor, None]:
    """``query`` [1, heads, tokens, width], limits of rows [rows + 1]; returns [1, tokens, heads, width]."""
    if cu_seq_lens_q is None or dropout:  # generation; and the kernel drops nothing out
        kwargs |= {"cu_seq_lens_q": cu_seq_lens_q, "scaling": scaling, "dropout": dropout}
        return attend_row_by_row(module, query, key, value, attention_mask, sliding_window=sliding_window, **kwargs)
    kind = query.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else value.dtype  # it knows no autocast
    rows = (tensor[0].transpose(0, 1).to(dtype) for tensor in (query, key, value))
    reached = sliding_window is not None and sliding_window < max_length_q
    output = varlen.varlen_attn(
        *rows,
        cu_seq_lens_q,
        cu_seq_lens_q,
        max_length_q,
        max_length_q,
        scale=scaling,
        window_size=(sliding_window - 1 if reached else -1, 0),  # the default looks ahead
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output[None], None
