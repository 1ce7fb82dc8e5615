from collections.abc import Mapping
from typing import Any, ClassVar

from generator.case.case import Case
from generator.techniques.attention.eager import make_attention_edits
from generator.techniques.base import Published, Technique
from generator.techniques.edits import Edits
from generator.techniques.precision.bf16 import explain_missing_bf16
from generator.techniques.precision.fp16 import explain_missing_fp16
from generator.techniques.traits import Trait


class FlashAttention(Technique):
    """FlashAttention-2 as a prebuilt kernel from the kernels hub.

    What it does: attention in tiles that never leave the chip, and several texts in one sequence without a mask.
    When it loses: against SDPA, which runs the same algorithm, wherever nothing is packed; padded batches slow it down.
    Known problems: computes in 16 bits only, on compute capability 8.0 and later; needs the ``kernels`` package in the
    range that Transformers accepts, and the network at first use.
    """

    axis = "attention"
    name = "flash-attention"
    modes = ("train", "infer")
    provides = frozenset({Trait.VARIABLE_LENGTH_KERNEL, Trait.TRANSFORMERS_MODEL})
    excludes: ClassVar = {Trait.FLOAT32_ARITHMETIC: "flash-attention computes in 16 bits, {other} does not"}
    evidence = (
        Published(
            "https://arxiv.org/abs/2307.08691", "FlashAttention-2: up to 73 % of peak on A100, forward and backward"
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        if why := case.explain_missing("hub-flash"):
            return why
        if explain_missing_bf16(case) and explain_missing_fp16(case):
            return "it computes in 16 bits only"
        return case.stack.why_missing("kernels")

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"attention": "flash"}

    def edits(self, case: Case) -> Edits:
        return make_attention_edits(
            "kernels-community/flash-attn2", "prebuilt FlashAttention-2", requirements=("kernels",)
        )
