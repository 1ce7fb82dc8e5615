"""Recompute a layer in the backward pass, but for what attention and every second matrix product returned."""

from functools import partial

import torch
import torch.nn.attention.varlen
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, SelectiveCheckpointContext, create_selective_checkpoint_contexts

ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention.default: 3,
    torch.ops.aten._scaled_dot_product_efficient_attention.default: 5,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default: 5,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default: 3,
    torch.ops.torch_attn._varlen_attn.default: None,
}
"""With the place of its dropout among its arguments."""
PRODUCTS = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}


def keep_selected(model: nn.Module) -> None:
    """When the Trainer switches activation checkpointing on, it does so with this choice of what is kept."""
    enable = model.activation_checkpointing_enable

    def enable_selectively(activation_checkpointing_kwargs: dict | None = None, **kwargs) -> None:
        how = {**(activation_checkpointing_kwargs or {}), "context_fn": make_contexts}
        enable(activation_checkpointing_kwargs=how, **kwargs)

    model.activation_checkpointing_enable = enable_selectively


def make_contexts() -> tuple:
    """Of one layer: its forward pass, and the same again in the backward pass."""
    return create_selective_checkpoint_contexts(partial(choose, {False: 0, True: 0}))


def choose(counts: dict[bool, int], context: SelectiveCheckpointContext, operator, *args, **kwargs) -> CheckpointPolicy:
    """``counts``: products so far, in the forward pass and in its repetition, which must choose the same."""
    if operator in PRODUCTS:
        counts[context.is_recompute] += 1
        keeps = counts[context.is_recompute] % 2 == 1
    else:
        keeps = operator in ATTENTION and not drops_out(operator, args)
    return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE


def drops_out(operator, args: tuple) -> bool:
    """What draws random numbers has to draw them again: else later dropouts drop others than in the forward pass."""
    place = ATTENTION[operator]
    return place is not None and len(args) > place and args[place] > 0
