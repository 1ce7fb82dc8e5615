from collections.abc import Mapping
from typing import Any

from generator.case.case import Case
from generator.techniques.optimizer.adamw import AdamW


class AdamWFused(AdamW):
    """AdamW in one fused kernel: the same numbers, one pass over the states.

    What it does: updates weights and both states while they are read once; the default of Transformers since torch 2.8.
    When it loses: in memory against 8-bit states: 8 bytes of state per trained parameter.
    Known problems: runs on CUDA, CPU, XPU and MPS; XLA devices refuse it.
    """

    name = "adamw-fused"
    optim = "adamw_torch_fused"
    baseline = True

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"optimizer": self.state, "optimizer_fused": True}
