from collections.abc import Mapping
from typing import Any, ClassVar

from generator.case.case import Case
from generator.techniques.base import Published, Technique
from generator.techniques.edits import Edits
from generator.techniques.packing.flattened import explain_unequal_flattening, make_flattening_edits
from generator.techniques.packing.padded import estimate_lengths
from generator.techniques.traits import Trait

HEAD_DIM = 256
"""the widest head of PyTorch's flash kernel (aten/src/ATen/native/transformers/cuda/flash_attn)"""


class Varlen(Technique):
    """The texts of a batch one after the other, kept apart by the flash kernel for them that PyTorch brings.

    What it does: no padding is computed and no mask is made, without another package; loss and gradients are the same.
    When it loses: where lengths hardly differ, and where a micro-batch has one text: nothing is padded there.
    Known problems: computes in 16 bits, on compute capability 8.0 and later; its kernel drops nothing out, so that a
    model with attention dropout calls SDPA once a text; checked for shapes and arguments only.
    """

    axis = "packing"
    name = "varlen"
    provides = frozenset({Trait.VARYING_SHAPES, Trait.FLATTENED_ROWS})
    needs: ClassVar = {Trait.SDPA: "it takes the place of PyTorch's scaled_dot_product_attention"}
    excludes: ClassVar = {Trait.FLOAT32_ARITHMETIC: "its kernel computes in 16 bits, {other} does not"}
    request_only = "it has not run on a GPU yet: shapes and arguments alone were checked"
    evidence = (
        Published(
            "https://huggingface.co/blog/packing-with-FA2",
            "padding-free batches: up to twice the throughput where lengths differ, the same convergence",
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        if why := case.explain_missing("varlen"):
            return why
        if case.model.head_dim > HEAD_DIM or case.model.head_dim % 8:
            return f"PyTorch's flash kernel takes heads of up to {HEAD_DIM} in steps of 8, not {case.model.head_dim}"
        return explain_unequal_flattening(case)

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {**estimate_lengths(case, 0.0), "rows": "varlen"}

    def edits(self, case: Case) -> Edits:
        return make_flattening_edits("varlen_attention", "row_attention")
