"""Attention over the rows of a batch that stand one after the other, without padding: no row sees another.

SFTTrainer puts them so (`padding_free`) and says where each begins (`cu_seq_lens_q`). Transformers' SDPA would keep
them apart by a mask of tokens x tokens; here SDPA is called for each row by itself.
"""

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

SHORT_ROW = 512
"""Tokens of a row up to which a CPU's kernel is as fast on fp32 as on bf16, or faster: the backward pass of 9 heads
takes 0.18 against 0.97 ms for 40 tokens, 19 against 19 for 512, 61 against 43 for 1024 (Zen 5, torch 2.13)."""


def attend_within_rows(model: PreTrainedModel) -> None:
    """Once the model is loaded; saved files do not know of it."""
    AttentionInterface.register("row_by_row", attend_row_by_row)
    AttentionMaskInterface.register("row_by_row", mask_unless_flattened)
    model.set_attn_implementation("row_by_row")


def attend_row_by_row(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    cu_seq_lens_q: torch.Tensor | None = None,
    cu_seq_lens_k: torch.Tensor | None = None,
    sliding_window: int | None = None,
    **kwargs,
) -> tuple[torch.Tensor, None]:
    """``query`` [1, heads, tokens, width], limits of rows [rows + 1]; returns [1, tokens, heads, width].

    Rows of which more tokens are attended to than stand there begin with those that the first row begins with.
    """
    if cu_seq_lens_q is None:  # generation: nothing is flattened
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    lengths = cu_seq_lens_q.diff().tolist()
    whole = lengths if cu_seq_lens_k is None else cu_seq_lens_k.diff().tolist()
    widens = query.device.type == "cpu" and max(whole) <= SHORT_ROW
    dtype = torch.float32 if widens else value.dtype
    rows = zip(*(tensor.to(dtype).split(lengths, dim=2) for tensor in (query, key, value)), strict=True)
    outputs, first = [], ()
    with torch.autocast("cpu", enabled=False):  # it would make them bf16
        for row, length, tokens in zip(rows, lengths, whole, strict=True):
            shared = tokens - length
            if shared:
                row = [torch.cat((start[:, :, :shared], rest), dim=2) for start, rest in zip(first, row, strict=True)]
            first = first or row
            output = sdpa_attention_forward(module, *row, make_window(row[0], sliding_window), **kwargs)[0]
            outputs.append(output[:, shared:])
    return torch.cat(outputs, dim=1).to(value.dtype), None


def make_window(query: torch.Tensor, window: int | None) -> torch.Tensor | None:
    """The mask of a row that is longer than the model's window; others need none."""
    length = query.shape[2]
    if window is None or length <= window:
        return None
    return torch.ones(length, length, dtype=torch.bool, device=query.device).tril().triu(1 - window)[None, None]


def mask_unless_flattened(
    *, attention_mask: torch.Tensor | None = None, allow_is_causal_skip: bool = True, **kwargs
) -> torch.Tensor | None:
    """None for such rows: Transformers knows them by their positions, and forbids SDPA to do without a mask."""
    if attention_mask is None and not allow_is_causal_skip and kwargs["q_length"] == kwargs["kv_length"]:
        return None
    return sdpa_mask(attention_mask=attention_mask, allow_is_causal_skip=allow_is_causal_skip, **kwargs)
