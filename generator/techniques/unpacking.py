"""Weights that are packed in 4 bits (mxfp4, as gpt-oss is published) and trained as the 16-bit ones that they stand for."""

from __future__ import annotations

from generator.case.case import Case
from generator.case.workload import UNPACKED
from generator.techniques.edits import Code, Edits, make_argument
from generator.techniques.launch import is_by_loop

FORGET_PACKING = (
    "model._weight_conversions = None  # experts would be saved under the names of packed ones, and found by nobody"
)
"""``save_pretrained`` of Transformers 5.23 reverts the names that it read, and not the packing (``revert_weight_conversion``)."""


def make_unpacking_edits(case: Case) -> Edits:
    """Told, not left to what is installed: beside the package ``kernels`` Transformers would keep them packed, and train none."""
    if case.model.quantization not in UNPACKED or case.workload.mode != "train" or is_by_loop(case.layout):
        return Edits()
    return Edits(
        imports=("from transformers import Mxfp4Config",),
        model_arguments=(
            make_argument(
                "quantization_config", Code("Mxfp4Config(dequantize=True)"), "packed weights are not trained"
            ),
        ),
        after_model=(FORGET_PACKING,),
    )
