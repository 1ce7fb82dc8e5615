from generator.techniques.checkpointing.full import Full


class Every2(Full):
    """Checkpoint every second layer and keep the others' activations.

    Recomputes 1/2 of the forward pass for 1/2 of the saving: for when full checkpointing leaves memory unused.
    """

    name = "every-2"
    every = 2

    def comment(self, case) -> str:
        return "recompute every second layer"
