from collections.abc import Mapping
from typing import Any

from generator.case.case import Case
from generator.techniques.base import Technique


class Off(Technique):
    """Run the model operator by operator.

    What it does: PyTorch's own eager execution; nothing is compiled, and errors point to the line that caused them.
    When it loses: in long runs of fixed shapes on Ampere and later, and in decoding, where launching kernels dominates.
    Known problems: none that we know of.
    """

    axis = "compile"
    name = "off"
    baseline = True
    modes = ("train", "infer")

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"compile": None}
