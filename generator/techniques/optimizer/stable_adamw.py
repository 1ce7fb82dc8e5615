from generator.techniques.base import Published
from generator.techniques.optimizer.adamw import AdamW


class StableAdamW(AdamW):
    """StableAdamW: AdamW with Adafactor's update clipping.

    Against loss spikes, without gradient clipping.
    """

    name = "stable-adamw"
    optim = "stable_adamw"
    quality = 1
    quality_note = "update clipping in place of gradient clipping"
    requires = "torch-optimi"
    request_only = "it is another optimizer than AdamW"
    evidence = (Published("https://arxiv.org/abs/2304.13013", "fewer loss spikes in CLIP training"),)
