"""Adapters that read the input of the layer beside them as it is."""

from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn


def share_inputs(model: nn.Module) -> None:
    """Loss and gradients stay the same: autocast makes 16-bit copies of the small float32 factors.

    PEFT by itself casts the input to their float32 first, of which autocast makes a 16-bit copy again: one for each
    adapter, kept until the backward pass.
    """
    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            module.cast_input_dtype_enabled = False
