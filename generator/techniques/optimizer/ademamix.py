from generator.case.optimizer_states import OptimizerState
from generator.techniques.base import Published
from generator.techniques.optimizers import Optimizer


class AdEMAMix(Optimizer):
    """AdEMAMix: AdamW with a second, slow average of the gradients.

    What it does: adds a second, slow average of the gradients to AdamW: fewer tokens to the same loss are reported.
    When it loses: in memory and time per step: three states, 12 bytes per parameter.
    Known problems: another update rule: a choice for quality, never for speed or memory.
    """

    name = "ademamix"
    optim = "ademamix"
    state = OptimizerState(
        fixed_bytes=12,
        step_passes=9,
        source="three moments (Pagliardini et al.), in 32 bits of any weights (bitsandbytes 0.50)",
    )
    quality = 2
    quality_note = "another update rule"
    requires = "bitsandbytes"
    request_only = "it is another optimizer than AdamW"
    evidence = (Published("https://arxiv.org/abs/2409.03137", "a 1.3B model on 101B tokens matches AdamW on 197B"),)
