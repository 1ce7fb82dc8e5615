"""Compile the layers of the model, each by itself: they are equal, so that one compilation serves all."""

from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer


def compile_layers(model: nn.Module) -> None:
    """In place, when a layer is first called: names, hooks and what is saved stay those of the model.

    Where lengths differ, the second one compiles again, for any length.
    """
    for layer in model.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer.compile()
