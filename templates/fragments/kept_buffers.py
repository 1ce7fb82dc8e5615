"""Buffers that are saved with weights (what balances experts, for one), where FSDP divides the weights."""

import torch.distributed as dist
from torch import nn
from transformers import Trainer, TrainerCallback


class KeepBuffers(TrainerCallback):
    """Out of the model's state until Accelerate has divided all that this holds: it ends at a buffer, which cannot be.

    Then they are on each device those of the first process, which alone has read them, and are saved as before.
    """

    def __init__(self, model: nn.Module) -> None:
        weights = model.state_dict(keep_vars=True)
        self.places = [
            (module, name)
            for path, module in model.named_modules()
            for name, _ in module.named_buffers(recurse=False)
            if f"{path}.{name}".removeprefix(".") in weights
        ]
        for module, name in self.places:
            module.register_buffer(name, module.get_buffer(name), persistent=False)

    def on_train_begin(self, args, state, control, **kwargs):
        for module, name in self.places:
            buffer = module.get_buffer(name)
            dist.broadcast(buffer, src=0)
            module.register_buffer(name, buffer, persistent=True)


def keep_buffers(trainer: Trainer) -> None:
    trainer.add_callback(KeepBuffers(trainer.model))
