from generator.techniques.optimizer.adamw import AdamW


class AdamWFused(AdamW):
    """AdamW in one fused kernel: the same numbers, one pass over the states.

    The default of Transformers since torch 2.8; runs on CUDA, CPU, XPU and MPS. XLA devices refuse it.
    """

    name = "adamw-fused"
    optim = "adamw_torch_fused"
    baseline = True

    def effects(self, case):
        return {"optimizer": "adamw", "optimizer_fused": True}
