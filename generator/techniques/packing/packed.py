from collections.abc import Mapping
from typing import Any

from generator.case.case import Case
from generator.techniques.base import Published, Technique
from generator.techniques.edits import Edits, make_argument
from generator.techniques.traits import Trait


class Packed(Technique):
    """Fill every sequence to its full length with several texts.

    What it does: no padding and one shape for every batch; for plain text it is what pre-training does.
    When it loses: for conversations without a variable-length kernel: neighbours are kept apart by a dense mask.
    Known problems: a text may be cut where a sequence is full.
    """

    axis = "packing"
    name = "packed"
    provides = frozenset({Trait.JOINED_CONVERSATIONS})
    evidence = (
        Published(
            "https://arxiv.org/abs/2107.02027", "packing halves BERT pre-training time: half of the tokens were padding"
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        if case.workload.task_facts.classifies:
            return "every text has its own label"
        if not case.workload.packing:
            return "you asked for --no-packing"
        return None

    def traits(self, case: Case) -> frozenset[Trait]:
        """Plain text is one stream: what comes before may be seen."""
        return self.provides if case.workload.task == "sft" else frozenset()

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"padding_free": True}

    def edits(self, case: Case) -> Edits:
        if case.workload.task == "sft":
            return Edits(
                training_arguments=(make_argument("packing", True, "no padding: several conversations a sequence"),)
            )
        return Edits()
