from generator.techniques.base import Published
from generator.techniques.optimizer.adamw import AdamW


class PagedAdamW8bit(AdamW):
    """8-bit AdamW whose states move to host memory when the GPU runs short (bitsandbytes).

    Survives peaks that would end a run; slow while it really pages. CUDA unified memory only.
    """

    name = "paged-adamw-8bit"
    optim = "paged_adamw_8bit"
    quality = 1
    quality_note = "optimizer states are kept in 8 bits"
    requires = "bitsandbytes"

    evidence = (
        Published("https://arxiv.org/abs/2305.14314", "paged optimizers avoid the memory spikes of long sequences"),
    )
