from generator.case.case import Case
from generator.techniques.base import Technique


class NoAdapter(Technique):
    """Nothing stands beside the weights that are trained.

    What it does: full training: every weight is updated itself.
    When it loses: in memory, against adapters.
    Known problems: none that we know of.
    """

    axis = "adapter"
    name = "none"
    baseline = True

    def obstacle(self, case: Case) -> str | None:
        train = case.workload.train
        return None if train == "full" else f"you asked for --train {train}, which trains adapters"
