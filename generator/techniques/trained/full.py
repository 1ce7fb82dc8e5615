from generator.techniques.base import Technique


class Full(Technique):
    """Train every parameter.

    Needs gradients and optimizer states for all of them: 16 bytes a parameter with AdamW in mixed precision.
    """

    axis = "trained"
    name = "full"
    baseline = True

    def obstacle(self, case):
        return None if case.workload.train == "full" else f"you asked for --train {case.workload.train}"

    def effects(self, case):
        return {"train": "full"}
