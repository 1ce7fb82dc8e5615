from generator.case.optimizer_states import pack_in_8_bits
from generator.techniques.base import Published
from generator.techniques.optimizers import Optimizer


class Lion8bit(Optimizer):
    """Lion with 8-bit momentum (bitsandbytes).

    What it does: sign updates from one momentum: 1 byte of state per parameter.
    When it loses: where AdamW's settings are to be kept.
    Known problems: wants a 3 to 10 times smaller learning rate than AdamW.
    """

    name = "lion-8bit"
    optim = "lion_8bit"
    state = pack_in_8_bits(1)
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
