from dataclasses import replace

from generator.case.optimizer_states import ADAM
from generator.techniques.base import Published
from generator.techniques.optimizers import Optimizer


class StableAdamW(Optimizer):
    """StableAdamW: AdamW with Adafactor's update clipping.

    What it does: AdamW with Adafactor's update clipping, against loss spikes.
    When it loses: in time per step against fused AdamW, where no spikes occur.
    Known problems: meant in place of gradient clipping, not beside it.
    """

    name = "stable-adamw"
    optim = "stable_adamw"
    state = replace(
        ADAM,
        foreach=False,
        compensated=True,
        step_passes=8,
        source=f"{ADAM.source}; Kahan's sum of 16-bit weights (torch-optimi 0.3)",
    )
    quality = 1
    quality_note = "update clipping in place of gradient clipping"
    requires = "torch-optimi"
    request_only = "it is another optimizer than AdamW"
    evidence = (Published("https://arxiv.org/abs/2304.13013", "fewer loss spikes in CLIP training"),)
