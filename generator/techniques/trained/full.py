from collections.abc import Mapping
from typing import Any

from generator.case.case import Case
from generator.techniques.base import Technique
from generator.techniques.edits import Edits, merge_edits
from generator.techniques.router_loss import make_router_edits
from generator.techniques.unpacking import make_unpacking_edits


class Full(Technique):
    """Train every parameter.

    What it does: every weight has a gradient and optimizer states.
    When it loses: in memory: 16 bytes per parameter with AdamW in mixed precision.
    Known problems: a checkpoint holds the optimizer states too: three times the weights.
    """

    axis = "trained"
    name = "full"
    baseline = True

    def obstacle(self, case: Case) -> str | None:
        return None if case.workload.train == "full" else f"you asked for --train {case.workload.train}"

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"train": "full"}

    def edits(self, case: Case) -> Edits:
        parts = {"unpacking": make_unpacking_edits(case), "router loss": make_router_edits(case)}
        return merge_edits(list(parts.items()))
