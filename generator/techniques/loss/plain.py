from generator.techniques.base import Technique


class Plain(Technique):
    """All logits at once, cross-entropy in fp32: what the model's own forward does.

    Holds several copies of tokens x vocabulary in 32 bits.
    """

    axis = "loss"
    name = "plain"
    baseline = True

    def obstacle(self, case):
        if case.workload.task == "sft":
            return "TRL's SFTTrainer never holds all logits"
        return None

    def effects(self, case):
        return {"loss_kernel": "plain"}
