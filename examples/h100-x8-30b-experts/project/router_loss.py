"""The loss that balances the experts of a mixture, beside that of the tokens; an evaluation is of the tokens alone."""

import torch


def add_router_loss(trainer, weight: float | None) -> None:
    """The mean over micro-batches of a step and copies of the model, times ``weight`` (``None``: that of its config).

    By output_router_logits in the model's config it would be added up over both, and an evaluation have it too.
    """
    model, division = trainer.model, trainer.division
    weight = model.config.router_aux_loss_coef if weight is None else weight
    trainer.router_aux_loss_coef, trainer.router_losses = weight, []
    model.config.output_router_logits = False
    if not weight:
        return
    model.router_aux_loss_coef = weight / (trainer.args.gradient_accumulation_steps * division.copies)
    division.router_losses, log = trainer.router_losses, trainer.log

    def log_both(logs: dict[str, float]) -> None:
        if "loss" in logs and trainer.router_losses:
            mean = trainer.accelerator.reduce(torch.stack(trainer.router_losses).mean(), "mean").item()
            logs = {**logs, "aux_loss": mean}  # the name that TRL gives it
            trainer.router_losses.clear()
        log(logs)

    trainer.log = log_both
