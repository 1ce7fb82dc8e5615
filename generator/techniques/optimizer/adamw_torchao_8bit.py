from generator.case.optimizer_states import BLOCKWISE8, OptimizerState
from generator.techniques.base import Published
from generator.techniques.optimizers import Optimizer


class AdamWTorchao8bit(Optimizer):
    """AdamW with 8-bit states from torchao.

    What it does: 2 bytes of state per parameter, in PyTorch code that torch.compile fuses.
    When it loses: against bitsandbytes' 8-bit AdamW in short runs: its first step compiles, a minute and more.
    Known problems: needs a C++ compiler at run time.
    """

    name = "adamw-torchao-8bit"
    compiles = True
    optim = "adamw_torch_8bit"
    state = OptimizerState(
        fixed_bytes=2 + 2 * BLOCKWISE8,
        unpacked_bytes=8,
        step_passes=5,
        source="torchao.optim AdamW8bit, block size 256",
    )
    quality = 1
    quality_note = "optimizer states are kept in 8 bits"
    requires = "torchao"
    evidence = (
        Published(
            "https://github.com/pytorch/ao/tree/main/torchao/optim",
            "8-bit AdamW matches the quality and speed of bitsandbytes on Llama-2-7B",
        ),
    )
