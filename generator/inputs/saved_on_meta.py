"""What the blocks of a model keep for their backward pass, as autograd saves it on the meta device: no values, only shapes."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager

PROMPTS = (256, 512)
"""tokens of the two sequences: multiples of the chunks in which scans compute; what grows faster than they do are pairs of tokens"""
LARGEST_FLASH_HEAD = 256
"""elements (torch's sdp_utils.cpp: check_head_dim_size_flash)"""


def measure_saved(model, layers: int) -> list[float]:
    """Of one block, in the mean: elements of 16 bits per token, other bytes per token, and the same two per pair of tokens; nothing where
    the model cannot be run so. ``model`` is in bfloat16 and trained whole."""
    try:
        short, long = (count_saved(model, layers, tokens) for tokens in PROMPTS)
    except Exception:  # whatever a model of any kind may raise without values: what it keeps is then assumed, and said
        return []
    tokens, more = PROMPTS
    pairs = [max(0.0, (b / more - a / tokens) / (more - tokens)) for a, b in zip(short, long, strict=True)]
    each = [max(0.0, b / more - pair * more) for b, pair in zip(long, pairs, strict=True)]
    return [round(x / layers, 4) for x in (*each, *pairs)] if sum(each) else []


def count_saved(model, layers: int, tokens: int) -> tuple[int, int]:
    """Elements of 16 bits and bytes of other tensors that the blocks of ``model`` save of one sequence, each storage once."""
    import torch
    from torch import nn

    stacks = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == layers]
    blocks = max(stacks, key=lambda stack: sum(p.numel() for p in stack.parameters()))
    own = {p.untyped_storage()._cdata for p in model.parameters()}
    saved: dict[int, torch.Tensor] = {}
    inside = [0]

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if inside[0]:
            key = tensor.untyped_storage()._cdata
            if key not in own:
                saved[key] = tensor  # holds the storage, so that none gets its number
        return tensor

    def enter(*_: object) -> None:
        inside[0] += 1

    def leave(*_: object) -> None:
        inside[0] -= 1

    hooks = [h for b in blocks for h in (b.register_forward_pre_hook(enter), b.register_forward_hook(leave))]
    model.config.pad_token_id = None  # with one it looks for it among the tokens
    model.train()
    try:
        with kernels_of_cuda(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            ids = torch.ones((1, tokens), dtype=torch.long, device="meta")
            output = model(input_ids=ids, use_cache=False)
    finally:
        model.eval()
        for hook in hooks:
            hook.remove()
    storages = [
        tensor.untyped_storage().nbytes() * (1 if tensor.element_size() == 2 else -1) for tensor in saved.values()
    ]
    del output
    return sum(n for n in storages if n > 0) // 2, -sum(n for n in storages if n < 0)


@contextmanager
def kernels_of_cuda() -> Generator[None]:
    """The attention and the products of experts that a GPU runs, in the place of those of a tensor without a device."""
    from unittest.mock import patch  # which brings asyncio and ssl: a tenth of a second of every plan

    from torch.nn import functional

    with ExitStack() as stack:
        packed = "transformers.masking_utils.find_packed_sequence_indices"  # reads values
        stack.enter_context(patch(packed, lambda _positions: None))
        experts = "transformers.integrations.moe._can_use_grouped_mm"
        stack.enter_context(patch(experts, lambda _inputs, _weights, _ends: True))
        stack.enter_context(patch.object(functional, "scaled_dot_product_attention", attend_fused))
        yield


def attend_fused(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """What CUDA's dispatcher takes for 16 bits (torch's sdp_utils.cpp): flash without a mask and with heads that it knows, else the
    memory-efficient kernel, and products that materialize the scores where keys are grouped for that one."""
    import torch

    sizes = query.shape[-1], value.shape[-1]
    if attn_mask is None and sizes[0] == sizes[1] <= LARGEST_FLASH_HEAD:
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        return flash(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype)
    if enable_gqa and key.shape[1] != query.shape[1]:
        plain = torch.ops.aten._scaled_dot_product_attention_math
        return plain(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=True)[0]
    mask = None if attn_mask is None else attn_mask.expand(*query.shape[:3], key.shape[2])
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    return efficient(query, key, value, mask, True, dropout_p, is_causal, scale=scale)[0]
