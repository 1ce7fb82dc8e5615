from generator.techniques.base import Published
from generator.techniques.optimizer.adamw import AdamW


class AdaLomo(AdamW):
    """AdaLomo: LOMO with a factored adaptive rate.

    Close to AdamW in reports; no gradient accumulation.
    """

    name = "adalomo"
    accumulates = False
    optim = "adalomo"
    quality = 3
    quality_note = "factored second moment, updates during the backward pass"
    requires = "lomo-optim"
    request_only = "it is another optimizer than AdamW"
    evidence = (Published("https://arxiv.org/abs/2310.10195", "results on par with AdamW at LOMO's memory"),)

    def obstacle(self, case):
        return "its package needs CUDA" if not case.on_cuda else super().obstacle(case)
