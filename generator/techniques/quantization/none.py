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

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"quant": "none"}
