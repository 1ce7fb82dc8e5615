from generator.technique import Technique


class Off(Technique):
    """Keep every activation for the backward pass."""

    axis = "checkpointing"
    name = "off"
    baseline = True

    def effects(self, case):
        return {"checkpoint_every": 0}
