from collections.abc import Mapping
from typing import Any, ClassVar

from generator.case.case import Case
from generator.techniques.base import Published, Technique
from generator.techniques.quantization.bnb_nf4 import explain_quantized
from generator.techniques.traits import Trait


class Int8(Technique):
    """Serve 8-bit weights by an engine that multiplies them as they are.

    What it does: halves what every token reads from memory against 16 bits, and quarters it against 32.
    When it loses: hardly: where an engine has such products, only 4 bits are faster.
    Known problems: answers change a little: compare.py says how much.
    """

    axis = "quantization"
    name = "int8"
    modes = ("infer",)
    quality = 1
    quality_note = "weights are rounded to 8 bits"
    provides = frozenset({Trait.PACKED_ON_CPU})
    needs: ClassVar = {Trait.PACKS_8_BITS: "{other} does not pack weights into 8 bits; only {able} do"}
    evidence = (Published("https://arxiv.org/abs/2208.07339", "8-bit weights: no degradation up to 175B"),)

    def obstacle(self, case: Case) -> str | None:
        return explain_quantized(case)

    def traits(self, case: Case) -> frozenset[Trait]:
        return self.provides if case.on_cpu else self.provides - {Trait.PACKED_ON_CPU}

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"quant": "int8"}
