from collections.abc import Mapping
from typing import Any

from generator.case.case import Case
from generator.techniques.base import Technique


class NoQuantization(Technique):
    """Serve the weights in the format they compute in.

    What it does: weights are used as they are read.
    When it loses: only where they do not fit.
    Known problems: none that we know of.
    """

    axis = "quantization"
    name = "none"
    baseline = True
    modes = ("infer",)

    def obstacle(self, case: Case) -> str | None:
        if case.workload.serves and case.model.quantization:
            return f"the checkpoint is quantized ({case.model.quantization}): its weights are used as they are stored"
        return None

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"quant": "none"}
