from generator.techniques.base import Published
from generator.techniques.optimizer.adamw import AdamW


class AdamWTorchao4bit(AdamW):
    """AdamW with 4-bit states from torchao.

    1 byte of state a parameter. Its first step compiles for a minute.
    """

    name = "adamw-torchao-4bit"
    compiles = True
    optim = "adamw_torch_4bit"
    quality = 2
    quality_note = "optimizer states are kept in 4 bits"
    requires = "torchao"

    evidence = (
        Published(
            "https://arxiv.org/abs/2309.01507", "4-bit states on par with 32-bit on fine-tuning and language modelling"
        ),
    )
