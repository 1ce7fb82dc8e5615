from generator.technique import Published
from generator.techniques.optimizer.adamw import AdamW


class AdamWFused(AdamW):
    """AdamW in one fused kernel: the same numbers, one pass over the states.

    The default of Transformers since torch 2.8; runs on CUDA, CPU, XPU and MPS. XLA devices refuse it.
    """

    name = "adamw-fused"
    optim = "adamw_torch_fused"
    baseline = False
    evidence = (
        Published(
            "https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html",
            "the fused implementation is usually the fastest, then foreach, then the for-loop",
        ),
    )

    def effects(self, case):
        return {"optimizer": "adamw", "optimizer_fused": True}
