from generator.case.optimizer_states import OptimizerState
from generator.techniques.base import Published
from generator.techniques.optimizers import UpdatingInBackward


class Lomo(UpdatingInBackward):
    """LOMO: update each parameter during the backward pass, keep no gradients and no states.

    What it does: updates each parameter during the backward pass: neither gradients nor states are kept.
    When it loses: in what it learns: it is plain SGD.
    Known problems: no gradient accumulation, so the micro-batch is the whole batch; gradients are not clipped, their
    norm is known after the updates only; one process.
    """

    name = "lomo"
    optim = "lomo"
    state = OptimizerState(stores_gradients=False, step_passes=3, source="LOMO updates in the backward pass")
    quality = 3
    quality_note = "plain SGD updates during the backward pass, and gradients are not clipped by their norm"
    requires = "lomo-optim"
    request_only = "it is SGD, not AdamW"
    evidence = (Published("https://arxiv.org/abs/2306.09782", "full fine-tuning of 65B on 8 RTX 3090"),)
