"""The loss that balances the experts of a mixture, which SFTTrainer adds to that of the tokens."""

from trl import SFTTrainer


def add_router_loss(trainer: SFTTrainer) -> None:
    """In training alone: an evaluation is of the tokens, and the trained model's config asks no server for its routers.

    SFTTrainer evaluates with it, and leaves output_router_logits in the config.
    """
    trainer.model.config.output_router_logits = False
    trainer.router_losses = []  # what was added in the first step
    if not trainer.aux_loss_enabled:
        return
    compute_loss = trainer.compute_loss

    def compute_both(model, *args, **kwargs):
        trainer.aux_loss_enabled = model.training
        loss = compute_loss(model, *args, **kwargs)
        if model.training:
            trainer.router_losses = trainer._metrics["train"]["aux_loss"]
        return loss

    trainer.compute_loss = compute_both
