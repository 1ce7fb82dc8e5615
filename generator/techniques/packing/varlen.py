from collections.abc import Mapping
from typing import Any, ClassVar

from generator.case.case import Case
from generator.model.block_traits import read_block_traits
from generator.techniques.base import Published, Technique
from generator.techniques.edits import Edits
from generator.techniques.packing.flattened import explain_unequal_flattening, make_flattening_edits
from generator.techniques.packing.padded import estimate_lengths
from generator.techniques.traits import Trait

NARROW_BACKWARD = range(200, 225, 8)
"""heads whose backward pass takes more shared memory than boards other than 8.0's and 9.0's have (FlashAttention, flash_api.cpp)"""
HEAD_DIM = 256
"""the widest head of PyTorch's flash kernel (aten/src/ATen/native/transformers/cuda/flash_attn)"""


class Varlen(Technique):
    """The texts of a batch one after the other, kept apart by the flash kernel for them that PyTorch brings.

    What it does: no padding is computed and no mask is made, without another package; loss and gradients are the same.
    When it loses: where lengths hardly differ, and where a micro-batch has one text: nothing is padded there.
    Known problems: computes in 16 bits, on compute capability 8.0 and later; its kernel drops nothing out; of several
    devices each step waits for the one with the most tokens: its rows are dealt out; a rare batch of long texts takes more memory than is planned
    for, one in 100,000 by the lengths of the data. On an H200 full, LoRA, QLoRA and DoRA trainings have the losses
    of padded batches to three digits (benchmarks/results/gpu_day_h200.json); its speed was not measured.
    """

    axis = "packing"
    name = "varlen"
    provides = frozenset({Trait.VARYING_SHAPES, Trait.FLATTENED_ROWS})
    needs: ClassVar = {Trait.SDPA: "it takes the place of PyTorch's scaled_dot_product_attention"}
    excludes: ClassVar = {Trait.FLOAT32_ARITHMETIC: "its kernel computes in 16 bits, {other} does not"}
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
        if case.model.head_dim in NARROW_BACKWARD and case.explain_missing("wide-backward"):
            return (
                f"PyTorch's flash kernel has no backward pass for heads of {case.model.head_dim} on {case.device.name}"
            )
        if read_block_traits(case.model.model_type).get("attention_dropout"):
            return f"models of type {case.model.model_type} drop attention out, which its kernel does not: it would be called once a text"
        return explain_unequal_flattening(case)

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {**estimate_lengths(case, 0.0, "dealt"), "rows": "varlen"}

    def edits(self, case: Case) -> Edits:
        return make_flattening_edits(case, "varlen_attention", "row_attention")
