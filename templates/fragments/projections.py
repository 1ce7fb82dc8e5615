"""GaLore and APOLLO keep an object in the state of each weight, which PyTorch reads back only if it is told so."""

import torch
from torch.serialization import add_safe_globals
from transformers import TrainerCallback


class RestoreProjections(TrainerCallback):
    """Lets a checkpoint hold objects of these classes, and moves their matrices to the weights that they project.

    Trainer reads the states to the CPU, where it is one process; an optimizer moves tensors from there, and no objects.
    """

    def __init__(self, *classes: type):
        add_safe_globals(list(classes))  # plain attributes: numbers, words, a matrix

    def on_train_begin(self, args, state, control, optimizer, **kwargs):
        for weight, values in optimizer.state.items():
            if "projector" in values:
                projector = values["projector"]
                projector.ortho_matrix = move_to(projector.ortho_matrix, weight.device)


def move_to(matrix: torch.Tensor | list[torch.Tensor], device: torch.device):
    """Two matrices, where both sides are projected."""
    return [part.to(device) for part in matrix] if isinstance(matrix, list) else matrix.to(device)
