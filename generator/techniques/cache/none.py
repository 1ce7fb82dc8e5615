from collections.abc import Mapping
from typing import Any

from generator.case.case import Case
from generator.techniques.base import Technique


class NoCache(Technique):
    """No cache: one forward pass is the whole answer.

    What it does: keeps nothing between calls; what a classifier needs.
    When it loses: as soon as tokens are generated: every past token would be computed again for the next one.
    Known problems: none that we know of.
    """

    axis = "cache"
    name = "none"
    modes = ("infer",)

    def obstacle(self, case: Case) -> str | None:
        if case.workload.task_facts.generates:
            return "generation would compute every past token again"
        return None

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"cache": "none"}
