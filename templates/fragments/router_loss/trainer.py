"""The loss that balances the experts of a mixture, beside that of the tokens; an evaluation is of the tokens alone."""

import sys

import torch
from transformers import Trainer


def add_router_loss(trainer: Trainer, weight: float | None) -> None:
    """The mean over the micro-batches of a step and its processes, times ``weight`` (``None``: that of its config).

    By output_router_logits in the model's config Trainer would add it up over both, and evaluate with it.
    """
    model = trainer.model.get_base_model() if hasattr(trainer.model, "get_base_model") else trainer.model
    weight = model.config.router_aux_loss_coef if weight is None else weight
    trainer.router_aux_loss_coef, trainer.router_losses = weight, []  # named as TRL names it
    model.router_aux_loss_coef = 0.0  # what its own forward adds, where its config asks for it
    if not weight:
        return
    # of the function's module, not of the class: FSDP2 makes a class of its own
    compute_balance = sys.modules[type(model).forward.__module__].load_balancing_loss_func
    compute_loss, log = trainer.compute_loss, trainer.log

    def compute_both(wrapped, inputs, return_outputs=False, num_items_in_batch=None):
        if not wrapped.training:
            return compute_loss(wrapped, inputs, return_outputs, num_items_in_batch)
        mask = inputs.get("attention_mask")
        inputs = {**inputs, "output_router_logits": True}
        loss, outputs = compute_loss(wrapped, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch)
        balance = outputs.get("aux_loss")
        if balance is None:  # of a forward that is the project's own
            balance = compute_balance(outputs.router_logits, model.num_experts, model.num_experts_per_tok, mask)
        if not balance.requires_grad:
            sys.exit("the loss that balances the experts has no gradient: router_loss: 0 in config.yaml leaves it out")
        trainer.router_losses.append(balance.detach())
        # Trainer divides a loss by the micro-batches of a step where it has not counted their tokens
        steps = 1 if num_items_in_batch is None else trainer.current_gradient_accumulation_steps
        loss = loss + weight * balance / steps
        return (loss, outputs) if return_outputs else loss

    def log_both(logs, *args, **kwargs):
        if "loss" in logs and trainer.router_losses:
            mean = trainer.accelerator.reduce(torch.stack(trainer.router_losses).mean(), "mean").item()
            logs = {**logs, "aux_loss": mean}  # the name that TRL gives it
            trainer.router_losses.clear()
        log(logs, *args, **kwargs)

    trainer.compute_loss, trainer.log = compute_both, log_both
