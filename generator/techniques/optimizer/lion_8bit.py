from generator.techniques.base import Published
from generator.techniques.optimizer.adamw import AdamW


class Lion8bit(AdamW):
    """Lion with 8-bit momentum (bitsandbytes).

    One state of 1 byte a parameter. Wants a 3 to 10 times smaller learning rate than AdamW.
    """

    name = "lion-8bit"
    optim = "lion_8bit"
    quality = 2
    quality_note = "another update rule: needs its own learning rate"
    requires = "bitsandbytes"
    request_only = "it is another optimizer than AdamW, with its own learning rate"
    evidence = (
        Published(
            "https://arxiv.org/abs/2302.06675",
            "one state, sign updates; up to 2x fewer steps on some vision and language tasks",
        ),
    )
