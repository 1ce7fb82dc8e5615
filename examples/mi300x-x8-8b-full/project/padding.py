"""Padding that costs nothing: behind every token that is learned from, where causal attention never looks."""

from torch import nn


def drop_padding_mask(model: nn.Module) -> None:
    """Learn without the padding's mask: a masked row would keep the whole batch from the flash kernel.

    Exact where attention is causal, padding is on the right, and its labels are -100, as SFTTrainer makes them.
    """

    def drop(module: nn.Module, args: tuple, inputs: dict) -> tuple[tuple, dict]:
        # generate pads on the left, and needs its mask; label smoothing takes the labels out
        if module.training or inputs.get("labels") is not None:
            inputs = {**inputs, "attention_mask": None}
        return args, inputs

    model.register_forward_pre_hook(drop, with_kwargs=True)
