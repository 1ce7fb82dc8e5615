from collections.abc import Mapping
from typing import Any

from generator.case.case import Case
from generator.techniques.base import Technique


class Plain(Technique):
    """All logits at once, cross-entropy in fp32: what the model's own forward does.

    What it does: one product with the head, one loss over all tokens.
    When it loses: for large vocabularies and long sequences: several copies of tokens x vocabulary in 32 bits.
    Known problems: its memory is often the peak of a whole step for small models with large vocabularies.
    """

    axis = "loss"
    name = "plain"
    baseline = True

    def obstacle(self, case: Case) -> str | None:
        if case.workload.task == "sft" and case.skeleton is None:
            return "TRL's SFTTrainer never holds all logits"
        return None

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"loss_kernel": "plain"}
