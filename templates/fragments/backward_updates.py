"""What an optimizer that updates each weight in the backward pass cannot do."""

import sys

from transformers import Trainer


def check_backward_updates(trainer: Trainer) -> None:
    """Ends the process where an update in the backward pass would be another than the one that was asked for."""
    if reason := find_hindrance(trainer):
        sys.exit(f"{trainer.args.optim} in the backward pass: {reason}")


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
