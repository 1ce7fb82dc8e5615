from collections.abc import Mapping
from typing import Any, ClassVar

from generator.case.case import Case
from generator.techniques.base import Published, Technique
from generator.techniques.quantization.bnb_nf4 import explain_quantized
from generator.techniques.traits import Trait


class Int4(Technique):
    """Serve 4-bit weights by an engine that multiplies them as they are.

    What it does: reads a quarter of what 16 bits do for every token, an eighth of what 32 bits do.
    When it loses: in answers: small models suffer most.
    Known problems: answers change: compare.py says how much.
    """

    axis = "quantization"
    name = "int4"
    modes = ("infer",)
    quality = 2
    quality_note = "weights are rounded to 4 bits, in groups"
    provides = frozenset({Trait.PACKED_ON_CPU})
    needs: ClassVar = {Trait.PACKS_4_BITS: "{other} does not pack weights into 4 bits; only {able} do"}
    evidence = (
        Published(
            "https://arxiv.org/abs/2210.17323",
            "GPTQ: 4 bits in groups lose little for models of billions of parameters, more for small ones",
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        return explain_quantized(case)

    def traits(self, case: Case) -> frozenset[Trait]:
        return self.provides if case.on_cpu else self.provides - {Trait.PACKED_ON_CPU}

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"quant": "int4"}
