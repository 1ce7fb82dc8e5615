from generator.techniques.base import Technique
from generator.techniques.edits import Edits, argument


class Off(Technique):
    """Keep every activation for the backward pass."""

    axis = "checkpointing"
    name = "off"
    baseline = True

    def effects(self, case):
        return {"checkpoint_every": 0}

    def edits(self, case):
        if case.workload.task == "sft":  # SFTConfig's default is on
            return Edits(
                training_arguments=(
                    argument("activation_checkpointing", False, "activations fit; TRL would recompute"),
                )
            )
        return Edits()
