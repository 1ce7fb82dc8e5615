from dataclasses import replace

from generator.case.case import Case
from generator.case.optimizer_states import OptimizerState
from generator.techniques.base import Published
from generator.techniques.edits import Edits
from generator.techniques.optimizers import UpdatingInBackward


class AdaLomo(UpdatingInBackward):
    """AdaLomo: LOMO with a factored adaptive rate.

    What it does: updates each parameter during the backward pass with a factored second moment; keeps no gradients.
    When it loses: where AdamW's 8-bit states fit, which are closer to AdamW.
    Known problems: no gradient accumulation, so the micro-batch is the whole batch; gradients are not clipped by their
    norm, which its authors advise against; one process; its package needs CUDA, and keeps its states where no checkpoint
    finds them: adalomo_states.py.
    """

    name = "adalomo"
    optim = "adalomo"
    state = OptimizerState(
        stores_gradients=False, factored=True, step_passes=6, source="factored second moment, fused update"
    )
    quality = 3
    quality_note = (
        "factored second moment, updates during the backward pass, and gradients are not clipped by their norm"
    )
    requires = "lomo-optim"
    request_only = "it is another optimizer than AdamW"
    evidence = (Published("https://arxiv.org/abs/2310.10195", "results on par with AdamW at LOMO's memory"),)

    def obstacle(self, case: Case) -> str | None:
        return case.explain_missing("torch.cuda") or super().obstacle(case)

    def edits(self, case: Case) -> Edits:
        edits = super().edits(case)
        return replace(
            edits,
            imports=(*edits.imports, "from adalomo_states import keep_states"),
            fragments=(*edits.fragments, "adalomo_states"),
            after_trainer=(*edits.after_trainer, "keep_states(trainer)"),
        )
