from collections.abc import Mapping
from typing import Any

from generator.case.case import Case
from generator.techniques.base import Published, Technique
from generator.techniques.edits import Edits
from generator.techniques.quantization.bnb_nf4 import explain_unquantizable, make_quantized_edits
from generator.techniques.traits import Trait


class BnbInt8(Technique):
    """Serve the weights in 8 bits (bitsandbytes LLM.int8).

    What it does: takes half the memory of 16 bits with answers that hardly change.
    When it loses: in speed, at every batch size.
    Known problems: generate does not compile its layers.
    """

    axis = "quantization"
    name = "bnb-int8"
    modes = ("infer",)
    provides = frozenset({Trait.UNCOMPILEABLE_LAYERS, Trait.TRANSFORMERS_MODEL})
    quality = 1
    quality_note = "weights are rounded to 8 bits"
    evidence = (Published("https://arxiv.org/abs/2208.07339", "LLM.int8: no degradation up to 175B"),)

    def obstacle(self, case: Case) -> str | None:
        return explain_unquantizable(case)

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"quant": "int8"}

    def edits(self, case: Case) -> Edits:
        return make_quantized_edits("quantization = BitsAndBytesConfig(load_in_8bit=True)")
