"""Norms and feed-forward of each layer, and the last norm, in tiles of the sequence, whose insides alone are held.

Values and gradients are those of the layer as it was; each tile is computed again in the backward pass.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

TILE_TOKENS = 2048
TOKENWISE = ("input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm", "mlp")


def tile_layers(model: nn.Module) -> None:
    """Change the layers of ``model`` in place."""
    decoder = model.get_decoder()
    named = [pair for layer in decoder.layers for pair in layer.named_modules()]
    for module in (*(module for name, module in named if name in TOKENWISE), decoder.norm):
        module.forward = InTiles(module.forward)


class InTiles:
    def __init__(self, forward):
        self.forward = forward

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """``hidden``: batch x sequence x width, or x heads x their width."""
        tiles = hidden.split(max(1, TILE_TOKENS // hidden.shape[0]), dim=1)
        if not torch.is_grad_enabled():
            return torch.cat([self.forward(tile) for tile in tiles], dim=1)
        return torch.cat([checkpoint(self.forward, tile, use_reentrant=False) for tile in tiles], dim=1)
