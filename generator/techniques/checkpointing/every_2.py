from generator.case.case import Case
from generator.techniques.checkpointing.full import Full
from generator.techniques.traits import Trait


class Every2(Full):
    """Checkpoint every second layer and keep the others' activations.

    What it does: recomputes 1/2 of the forward pass for 1/2 of the saving, where full checkpointing leaves memory
    unused.
    When it loses: where every activation fits, and where only full checkpointing does.
    Known problems: counts blocks of Transformers' GradientCheckpointingLayer only; FSDP's own recomputation cannot do
    it.
    """

    name = "every-2"
    every = 2
    provides = frozenset({Trait.PARTIAL_RECOMPUTATION})

    def write_comment(self, case: Case) -> str:
        return "recompute every second layer"
