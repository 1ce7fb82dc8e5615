from generator.techniques.base import Published
from generator.techniques.optimizer.adamw import AdamW


class AdamWTorchao8bit(AdamW):
    """AdamW with 8-bit states from torchao.

    As bitsandbytes' 8-bit AdamW, in PyTorch code that torch.compile fuses: its first step compiles for a minute.
    """

    name = "adamw-torchao-8bit"
    compiles = True
    optim = "adamw_torch_8bit"
    quality = 1
    quality_note = "optimizer states are kept in 8 bits"
    requires = "torchao"

    evidence = (
        Published(
            "https://github.com/pytorch/ao/tree/main/torchao/optim",
            "8-bit AdamW matches the quality and speed of bitsandbytes on Llama-2-7B",
        ),
    )
