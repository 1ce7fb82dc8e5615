from collections.abc import Mapping
from typing import Any

from generator.case.case import Case
from generator.techniques.base import Technique
from generator.techniques.traits import Trait


class Plain(Technique):
    """All logits at once, cross-entropy in fp32: what the model's own forward does.

    What it does: one product with the head, one loss over all tokens.
    When it loses: for large vocabularies and long sequences: several copies of tokens x vocabulary in 32 bits.
    Known problems: its memory is often the peak of a whole step for small models with large vocabularies.
    """

    axis = "loss"
    name = "plain"
    baseline = True
    provides = frozenset({Trait.WHOLE_LOGITS})

    def traits(self, case: Case) -> frozenset[Trait]:
        """SFTTrainer has a loss of its own, where the Trainer is what runs: on no device whose project has a training of its own, of
        which none may be made of this work (adapters, random weights), and which is priced with that all the same."""
        by_trainer = case.workload.task == "sft" and case.vendor.skeleton is None
        return self.provides if by_trainer else frozenset()

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"loss_kernel": "plain"}
