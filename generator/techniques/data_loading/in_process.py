from collections.abc import Mapping
from typing import Any

from generator.case.case import Case
from generator.techniques.base import Technique
from generator.techniques.edits import Edits
from generator.techniques.loading import list_pinning


class InProcess(Technique):
    """The training process prepares its own batches, between the steps.

    What it does: loads and collates each batch when it is needed; no process, no shared memory.
    When it loses: on an accelerator that would wait for its next batch.
    Known problems: none that we know of.
    """

    axis = "data-loading"
    name = "in-process"
    baseline = True

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"dataloader_workers": 0}

    def edits(self, case: Case) -> Edits:
        return Edits(training_arguments=list_pinning(case))
