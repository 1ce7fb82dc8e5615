from generator.case.case import Case
from generator.techniques.checkpointing.full import Full
from generator.techniques.traits import Trait


class Every3(Full):
    """Checkpoint every third layer and keep the others' activations.

    What it does: recomputes 1/3 of the forward pass for 1/3 of the saving, where full checkpointing leaves memory
    unused.
    When it loses: where every activation fits, and where only full checkpointing does.
    Known problems: counts blocks of Transformers' GradientCheckpointingLayer only; FSDP's own recomputation cannot do
    it.
    """

    name = "every-3"
    every = 3
    provides = frozenset({Trait.PARTIAL_RECOMPUTATION})

    def write_comment(self, case: Case) -> str:
        return "recompute every third layer"
