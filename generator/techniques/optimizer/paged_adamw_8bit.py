from dataclasses import replace

from generator.case.case import Case
from generator.techniques.base import Published
from generator.techniques.optimizer.adamw_8bit import AdamW8bit
from generator.techniques.optimizers import Optimizer


class PagedAdamW8bit(Optimizer):
    """8-bit AdamW whose states move to host memory when the GPU runs short (bitsandbytes).

    What it does: 8-bit states that move to host memory when the GPU runs short: survives peaks that would end a run.
    When it loses: while it really pages, and where nothing ever runs short.
    Known problems: CUDA unified memory only.
    """

    name = "paged-adamw-8bit"
    optim = "paged_adamw_8bit"
    state = replace(AdamW8bit.state, paged=True)
    quality = 1
    quality_note = "optimizer states are kept in 8 bits"
    requires = "bitsandbytes"
    evidence = (
        Published("https://arxiv.org/abs/2305.14314", "paged optimizers avoid the memory spikes of long sequences"),
    )

    def obstacle(self, case: Case) -> str | None:
        if case.on_cpu:  # bitsandbytes 0.50 warns, and keeps them where they are
            return "there is no accelerator whose memory could run short"
        return super().obstacle(case)
