from collections.abc import Mapping
from typing import Any

from generator.case.case import Case
from generator.techniques.base import Technique
from generator.techniques.edits import Edits


class Stored(Technique):
    """Serve a checkpoint that is quantized already, as its owner packed it.

    What it does: reads and holds the packed weights; the engine multiplies them by kernels for their format.
    When it loses: against plain weights where those fit and are not slower: their answers are the original's.
    Known problems: which engine runs which format differs; Transformers runs bitsandbytes' formats alone in the tested stack.
    """

    axis = "quantization"
    name = "stored"
    modes = ("infer",)

    def obstacle(self, case: Case) -> str | None:
        if not case.model.quantization:
            return "the weights of the checkpoint are plain"
        if case.model.stored_format is None:
            return f"how {case.model.quantization} packs the weights of this checkpoint has no formula"
        return None

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"quant": case.model.stored_format}

    def edits(self, case: Case) -> Edits:
        return Edits(requirements=("bitsandbytes",) if case.model.quantization == "bitsandbytes" else ())
