from generator.techniques.base import Technique


class InProcess(Technique):
    """The training process prepares its own batches, between the steps."""

    axis = "data-loading"
    name = "in-process"
    baseline = True

    def effects(self, case):
        return {"dataloader_workers": 0}
