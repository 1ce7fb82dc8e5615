from typing import ClassVar

from generator.techniques.base import Published
from generator.techniques.optimizer.adamw import AdamW


class GaLore(AdamW):
    """GaLore: AdamW on gradients projected to a low rank.

    Full-parameter training with little optimizer memory; the projection is recomputed by SVD now and then.
    """

    name = "galore"
    optim = "galore_adamw"
    quality = 3
    quality_note = "gradients are projected to a low rank"
    requires = "galore-torch"
    request_only = "it trains in a low-rank subspace"
    arguments: ClassVar = {
        "optim_target_modules": ["attn", "mlp"],
        "optim_args": "rank=128, update_proj_gap=200, scale=0.25",
    }
    evidence = (Published("https://arxiv.org/abs/2403.03507", "7B pre-training on one 24 GB GPU"),)
