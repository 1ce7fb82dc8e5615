from generator.techniques.base import Published
from generator.techniques.optimizer.adamw import AdamW


class AdEMAMix(AdamW):
    """AdEMAMix: AdamW with a second, slow average of the gradients.

    Three states, 12 bytes a parameter: a choice for quality, not for memory.
    """

    name = "ademamix"
    optim = "ademamix"
    quality = 2
    quality_note = "another update rule"
    requires = "bitsandbytes"
    request_only = "it is another optimizer than AdamW"
    evidence = (Published("https://arxiv.org/abs/2409.03137", "a 1.3B model on 101B tokens matches AdamW on 197B"),)
