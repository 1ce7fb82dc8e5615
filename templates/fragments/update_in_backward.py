"""Each weight is updated in the backward pass, as soon as its gradient is there, and the gradient is dropped.

The optimizer stays the Trainer's own, with its learning rates, its states and its place in a checkpoint.
"""

import torch
from bitsandbytes.optim.optimizer import Optimizer8bit
from transformers import Trainer, TrainerCallback

from backward_updates import check_backward_updates


def update_in_backward(trainer: Trainer) -> None:
    check_backward_updates(trainer)
    optimizer = trainer.create_optimizer()
    if isinstance(optimizer, Optimizer8bit):  # --optim may name another
        optimizer.load_state_dict = lambda states: load_paged(optimizer, states)
    trainer.add_callback(UpdateInBackward(trainer))


class UpdateInBackward(TrainerCallback):
    """Steps the optimizer for one weight at a time: the Trainer's own step, after that, finds no gradients."""

    def __init__(self, trainer: Trainer):
        self.accelerator = trainer.accelerator
        self.norms: list[torch.Tensor] = []

    def on_train_begin(self, args, state, control, optimizer, **kwargs):
        optimizer.step()  # without gradients: it only makes itself ready
        optimizer = optimizer.optimizer  # Accelerate's has wrapped it
        for weight in (weight for group in optimizer.param_groups for weight in group["params"]):
            weight.register_post_accumulate_grad_hook(lambda weight: self.update(optimizer, weight))
        self.accelerator.clip_grad_norm_ = self.report_norm

    def update(self, optimizer: torch.optim.Optimizer, weight: torch.Tensor) -> None:
        self.norms.append(torch.linalg.vector_norm(weight.grad, dtype=torch.float32))
        optimizer.step()  # passes over weights without a gradient, and no other has one
        weight.grad = None

    def report_norm(self, parameters, max_norm: float, norm_type: float = 2) -> torch.Tensor:
        """What the Trainer logs: the norm of the gradients that there were. Nothing is clipped."""
        norm = torch.linalg.vector_norm(torch.stack(self.norms))
        self.norms.clear()
        return norm


def load_paged(optimizer: Optimizer8bit, states: dict) -> None:
    """States of a checkpoint, in host memory again: bitsandbytes' own would read all of them into that of the GPU."""
    type(optimizer).load_state_dict(optimizer, states, move_to_device=False)
    for weight, values in optimizer.state.items():
        for name in values.keys() & {"state1", "state2"}:  # Lion has one
            buffer = optimizer.get_state_buffer(weight, dtype=values[name].dtype)
            values[name] = buffer.copy_(values[name])
