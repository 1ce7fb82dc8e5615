"""Adapters of a model in tensor parts: each process has a part of one factor, and the other whole.

Where outputs of a layer are divided that is the second factor, where inputs are the first: only what comes of that one
is sent, a few numbers a token. Of what is whole each process has the gradient of its own part.
"""

from collections.abc import Generator
from contextlib import contextmanager

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor
from torch.nn import functional as F

from divided_states import get_local

NAME = "default"


class PartLinear(nn.Module):
    """A product with this process's part of a weight."""

    def __init__(self, weight: torch.Tensor, mesh, dim: int):
        super().__init__()
        self.weight = nn.Parameter(distribute_tensor(weight.detach(), mesh, [Shard(dim)], src_data_rank=None))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return F.linear(states, self.weight.to_local())


class SummedLinear(PartLinear):
    """Of inputs of which each process has a part. Of the sum it keeps its own tokens, as the layer beside it does."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        parts = DTensor.from_local(super().forward(states), self.weight.device_mesh, [Partial()], run_check=False)
        return parts.redistribute(placements=[Shard(1)]).to_local()


def take_gathered(_, args: tuple) -> tuple:
    """The gathered tokens of a block are a DTensor, of which every product gives a part of the gradient."""
    return (args[0].to_local(grad_placements=[Partial()]),)


def adapt_parts(model: nn.Module, peft_config: LoraConfig) -> PeftModel:
    """PEFT sees whole weights: of parts it would make adapters of their size, which begin with other numbers."""
    mesh, model._device_mesh = model._device_mesh, None
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear) and isinstance(layer.weight, DTensor)]
    weights = [layer.weight for layer in layers]
    for layer, weight in zip(layers, weights, strict=True):
        whole = get_local(weight).detach().new_empty(1).expand(weight.shape)
        layer.weight = nn.Parameter(whole, requires_grad=False)
    adapted = get_peft_model(model, peft_config)
    for layer, weight in zip(layers, weights, strict=True):
        layer.weight = weight.requires_grad_(False)
    model._device_mesh = mesh
    for layer in adapted.modules():
        if isinstance(layer, LoraLayer):
            divide(layer)
    return adapted


@contextmanager
def divide_beneath(model: nn.Module) -> Generator[None, None, None]:
    """In it layers stand without their adapters, to be divided. Those are then divided as they are."""
    adapted = {name: layer for name, layer in model.named_modules() if isinstance(layer, LoraLayer)}
    for name, layer in adapted.items():
        model.set_submodule(name, layer.get_base_layer())
    yield
    for name, layer in adapted.items():
        divide(layer)
        model.set_submodule(name, layer)


def divide(layer: LoraLayer) -> None:
    """Tensor parts are the last axis of a mesh."""
    weight = layer.get_base_layer().weight
    ways, dim = weight.device_mesh[weight.device_mesh.mesh_dim_names[-1]], weight.placements[-1].dim
    first, second = layer.lora_A[NAME], layer.lora_B[NAME]
    if dim == 0:
        first.register_forward_pre_hook(take_gathered)
        layer.lora_B[NAME] = PartLinear(second.weight, ways, dim)
    else:
        layer.lora_A[NAME] = SummedLinear(first.weight, ways, dim)
