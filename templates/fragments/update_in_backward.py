"""Each weight is updated in the backward pass, as soon as its gradient is there, and the gradient is dropped.

The optimizer stays the Trainer's own, with its learning rates, its states and its place in a checkpoint.
"""

import sys

import torch
from bitsandbytes.optim.optimizer import Optimizer8bit
from transformers import Trainer, TrainerCallback


def update_in_backward(trainer: Trainer) -> None:
    """Ends the process where an update in the backward pass would be another than the one that was asked for."""
    if reason := find_hindrance(trainer):
        sys.exit(f"{trainer.args.optim} in the backward pass: {reason}")
    optimizer = trainer.create_optimizer()
    if isinstance(optimizer, Optimizer8bit):  # --optim may name another
        optimizer.load_state_dict = lambda states: load_paged(optimizer, states)
    trainer.add_callback(UpdateInBackward(trainer))


def find_hindrance(trainer: Trainer) -> str | None:
    args = trainer.args
    if args.gradient_accumulation_steps > 1:
        return (
            "each backward pass updates the weights, so that nothing can be accumulated: gradient_accumulation_steps "
            f"must be 1, not {args.gradient_accumulation_steps}"
        )
    if args.max_grad_norm > 0:
        return (
            "the norm of all gradients is known when the weights are updated already: max_grad_norm must be 0, not "
            f"{args.max_grad_norm}"
        )
    if trainer.accelerator.scaler is not None:
        return "fp16 scales the loss, and an update would see scaled gradients: take bf16"
    if args.world_size > 1:
        return f"{args.world_size} processes would update weights before they have exchanged their gradients"
    return None


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
