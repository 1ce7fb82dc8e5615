"""Adapters that read the input of the layer beside them as it is."""

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn


def share_inputs(model: nn.Module) -> None:
    """Loss and gradients stay the same: autocast makes 16-bit copies of the small float32 factors.

    PEFT by itself casts the input to their float32 first, of which autocast makes a 16-bit copy again: one for each
    adapter, kept until the backward pass.
    """
    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            module._cast_input_dtype = cast_outside_autocast


def cast_outside_autocast(inputs: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """``generate`` runs without autocast: nothing else would bring input and factors to one dtype there."""
    if inputs is None or torch.is_autocast_enabled(inputs.device.type):
        return inputs
    return inputs.to(dtype)
