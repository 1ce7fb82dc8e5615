from collections.abc import Mapping
from typing import Any, ClassVar

from generator.case.case import Case
from generator.techniques.base import Published, Technique
from generator.techniques.quantization.bnb_nf4 import explain_quantized
from generator.techniques.traits import Trait


class Fp8(Technique):
    """Serve weights, and multiply inputs, in 8-bit floating point: the engine casts them as it loads the model.

    What it does: halves the memory of the weights and what a token reads; products run at the fp8 rate.
    When it loses: hardly on boards that have it.
    Known problems: scales are taken from the weights alone, without calibration; answers change a little.
    """

    axis = "quantization"
    name = "fp8"
    modes = ("infer",)
    quality = 1
    quality_note = "weights and inputs of products are rounded to 8 bits"
    needs: ClassVar = {Trait.SERVES_16_BITS: "{other} has no 8-bit floating point; only {able} do"}
    evidence = (
        Published(
            "https://arxiv.org/abs/2411.02355", "FP8 weights and activations are lossless over Llama 3.1 8B to 405B"
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        return case.explain_missing("fp8") or explain_quantized(case)

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"quant": "float8"}
