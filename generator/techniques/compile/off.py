from collections.abc import Mapping
from typing import Any

from generator.case.case import Case
from generator.techniques.base import Technique
from generator.techniques.traits import Trait


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
    provides = frozenset({Trait.EAGER_STEPS})

    def traits(self, case: Case) -> frozenset[Trait]:
        """A server does not call generate."""
        return self.provides - {Trait.EAGER_STEPS} if case.workload.serves else self.provides

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"compile": None}
