from generator.edits import Edits
from generator.technique import Technique


class Padded(Technique):
    """One text a sequence, filled up to the longest of its batch.

    Padding is computed and thrown away.
    """

    axis = "packing"
    name = "padded"
    baseline = True

    def obstacle(self, case):
        if case.workload.task == "causal-lm":
            return "plain text is one stream: cut into full sequences there is nothing to pad"
        return None

    def effects(self, case):
        return {"padding_share": padding_share(case)}

    def edits(self, case):
        return Edits()


def padding_share(case) -> float:
    """Share of padding for texts of varied length: the longest of a batch sets it; one half (assumed) without a look at the data."""
    mean = case.workload.mean_tokens
    if mean is None:
        return 0.5
    return max(0.0, 1.0 - mean / case.workload.seq_len)
