from typing import ClassVar

from generator.case.optimizer_states import OptimizerState
from generator.techniques.base import Published
from generator.techniques.optimizers import ProjectingOptimizer


class GaLore(ProjectingOptimizer):
    """GaLore: AdamW on gradients projected to a low rank.

    What it does: AdamW on gradients projected to a low rank: full-parameter training with little optimizer memory.
    When it loses: where AdamW's 8-bit states fit: the projection is computed anew by SVD every 200 steps.
    Known problems: the Trainer wants optim_target_modules for it and refuses to start without; only linear layers are
    projected.
    """

    name = "galore"
    optim = "galore_adamw"
    state = OptimizerState(rank=128, step_passes=9, source="two moments of rank r and a projection")
    quality = 3
    quality_note = "gradients are projected to a low rank"
    requires = "galore-torch"
    request_only = "it trains in a low-rank subspace"
    arguments: ClassVar = {
        "optim_target_modules": ProjectingOptimizer.targets,
        "optim_args": "rank=128, update_proj_gap=200, scale=0.25",
    }
    projectors: ClassVar = {"GaLoreProjector": "galore_torch.galore_projector"}
    evidence = (Published("https://arxiv.org/abs/2403.03507", "7B pre-training on one 24 GB GPU"),)
