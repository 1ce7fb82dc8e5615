from generator.techniques.base import Technique


class Padded(Technique):
    """One text a sequence, filled up to the longest of its batch.

    Padding is computed and thrown away.
    """

    axis = "packing"
    name = "padded"
    baseline = True

    def obstacle(self, case):
        return one_stream(case)

    def effects(self, case):
        return lengths(case, 1.0)


def one_stream(case) -> str | None:
    if case.workload.task == "causal-lm":
        return "plain text is one stream: cut into full sequences there is nothing to pad"
    return None


def lengths(case, left: float) -> dict[str, float]:
    """How long the computed sequences are when ``left`` of the padding remains.

    The longest of a batch of eight lies at the 90th percentile of the lengths (mean rank of a maximum: b / (b + 1)). Without a
    look at the data, nothing is claimed: full sequences.
    """
    mean, long = case.workload.fill_mean, case.workload.fill_long
    if mean is None or long is None or long <= 0:
        return {"computed_share": 1.0, "padding_share": 0.0}
    computed = mean + left * max(long - mean, 0.0)
    return {"computed_share": computed, "padding_share": 1.0 - mean / computed}
