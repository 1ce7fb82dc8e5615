from typing import ClassVar

from generator.case.optimizer_states import OptimizerState
from generator.techniques.base import Published
from generator.techniques.optimizers import ProjectingOptimizer


class Apollo(ProjectingOptimizer):
    """APOLLO: channel-wise learning rates from a random low-rank projection.

    What it does: scales the learning rate channel by channel from a random low-rank projection; states near those of
    SGD.
    When it loses: where AdamW's 8-bit states fit.
    Known problems: the Trainer wants optim_target_modules for it and refuses to start without; only linear layers are
    projected.
    """

    name = "apollo"
    optim = "apollo_adamw"
    state = OptimizerState(rank=256, step_passes=8, source="moments in a random projection of rank r")
    quality = 3
    quality_note = "the learning rate is scaled by a rank-limited estimate"
    requires = "apollo-torch"
    request_only = "it is another optimizer than AdamW"
    arguments: ClassVar = {
        "optim_target_modules": ProjectingOptimizer.targets,
        "optim_args": "proj=random,rank=256,scale=1.0,scale_type=channel,update_proj_gap=200",
    }
    projectors: ClassVar = {
        "GradientProjector": "apollo_torch.random_projector",
        "GaLoreProjector": "apollo_torch.svd_projector",  # proj=svd
    }
    evidence = (Published("https://arxiv.org/abs/2412.05270", "SGD-like memory, AdamW-level performance"),)
