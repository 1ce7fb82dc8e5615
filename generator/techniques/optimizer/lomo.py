from generator.techniques.base import Published
from generator.techniques.optimizer.adamw import AdamW


class Lomo(AdamW):
    """LOMO: update each parameter during the backward pass, keep no gradients and no states.

    Plain SGD in what it learns; no gradient accumulation.
    """

    name = "lomo"
    accumulates = False
    optim = "lomo"
    quality = 3
    quality_note = "plain SGD updates during the backward pass"
    requires = "lomo-optim"
    request_only = "it is SGD, not AdamW"
    evidence = (Published("https://arxiv.org/abs/2306.09782", "full fine-tuning of 65B on 8 RTX 3090"),)
