"""Weights that one process of a node reads, and the others are given (FSDP2).

Transformers 5.23 has every process read all of them, in the dtype that they are trained in: a node would hold as many
models as it has devices.
"""

import torch
from torch import nn
from transformers import PreTrainedModel


def hold_places(model: PreTrainedModel) -> None:
    """An address of its own for each weight that is to come: by it Accelerate finds what its optimizer updates.

    What nobody writes takes no memory. Buffers that no file holds are sent by nobody: Transformers has computed them by
    now, but for those of a checkpoint that is unpacked as it is read.
    """
    held: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            if weight.is_meta:
                place = held.setdefault(id(weight), nn.Parameter(make_place(weight), weight.requires_grad))
                setattr(module, name, place)
        for name, buffer in list(module.named_buffers(recurse=False)):
            if buffer.is_meta:
                setattr(module, name, make_place(buffer))
                if name in module._non_persistent_buffers_set:
                    model._init_weights(module)


def make_place(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, device="cpu")
