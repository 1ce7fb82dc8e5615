"""Matrix products of the blocks in 8 bits: what they multiply is scaled and cast before, weights stay as they are."""

import sys
from dataclasses import replace

from torch import nn
from torchao.float8 import Float8LinearConfig, convert_to_float8_training
from torchao.float8.float8_linear import Float8Linear

TILE = 16
"""The products' kernels take inputs and outputs in multiples of it."""


def multiply_in_float8(model: nn.Module, recipe: str) -> int:
    """How many layers do so. ``recipe``: a scale for each tensor (tensorwise), or for each of its rows (rowwise).

    The output layer stays in 16 bits: its errors go to the loss unaveraged. Gradients of weights are sums over the
    tokens of a batch, which are filled up to a multiple of 16 where they are none.
    """
    chosen = {name for name, layer in model.named_modules() if is_multipliable(layer, model)}
    convert_to_float8_training(
        model,
        config=replace(Float8LinearConfig.from_recipe_name(recipe), pad_inner_dim=True),
        module_filter_fn=lambda layer, name: name in chosen,
    )
    converted = {name for name, layer in model.named_modules() if isinstance(layer, Float8Linear)}
    if not chosen or converted != chosen:  # it converts what it can, and says nothing of the rest
        sys.exit(
            f"{len(converted)} layers multiply in 8 bits, and {len(chosen)} of this model were to: plan without float8"
        )
    return len(chosen)


def is_multipliable(layer: nn.Module, model: nn.Module) -> bool:
    if not isinstance(layer, nn.Linear) or layer is model.get_output_embeddings():
        return False
    return layer.in_features % TILE == 0 and layer.out_features % TILE == 0
