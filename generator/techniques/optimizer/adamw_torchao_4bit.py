from generator.case.optimizer_states import BLOCKWISE4, OptimizerState
from generator.techniques.base import Published
from generator.techniques.optimizers import Optimizer


class AdamWTorchao4bit(Optimizer):
    """AdamW with 4-bit states from torchao.

    What it does: 1 byte of state per parameter in place of 8.
    When it loses: where 8-bit states fit.
    Known problems: its first step compiles, a minute and more; coarser states than any other AdamW here.
    """

    name = "adamw-torchao-4bit"
    compiles = True
    optim = "adamw_torch_4bit"
    state = OptimizerState(
        fixed_bytes=1 + 2 * BLOCKWISE4,
        unpacked_bytes=8,
        step_passes=5,
        source="torchao.optim AdamW4bit, block size 128",
    )
    quality = 2
    quality_note = "optimizer states are kept in 4 bits"
    requires = "torchao"
    evidence = (
        Published(
            "https://arxiv.org/abs/2309.01507", "4-bit states on par with 32-bit on fine-tuning and language modelling"
        ),
    )
