from collections.abc import Mapping
from typing import Any

from generator.case.case import Case
from generator.techniques.base import Technique
from generator.techniques.edits import Edits, make_argument


class Off(Technique):
    """Keep every activation for the backward pass.

    What it does: nothing is computed twice.
    When it loses: where activations do not fit, or where the room that they take would hold a larger micro-batch.
    Known problems: none that we know of; TRL recomputes unless it is told not to.
    """

    axis = "checkpointing"
    name = "off"
    baseline = True

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"checkpoint_every": 0}

    def edits(self, case: Case) -> Edits:
        if case.workload.task == "sft":  # SFTConfig's default is on
            return Edits(
                training_arguments=(
                    make_argument("activation_checkpointing", False, "activations fit; TRL would recompute"),
                )
            )
        return Edits()
