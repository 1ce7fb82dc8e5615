from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from generator.case.case import Case
from generator.techniques.base import Published, Technique
from generator.techniques.edits import Code, Edits, make_argument
from generator.techniques.trained.qlora import write_nf4_config
from generator.techniques.traits import Trait

KEEP_UNPACKED = """\
for layer in model.modules():
    if isinstance(layer, Linear4bit){condition}:  # {why}
        layer.support_avx512bf16_for_cpu = False"""


class BnbNf4(Technique):
    """Serve the weights in 4 bits (bitsandbytes NF4).

    What it does: takes a quarter of the memory of 16 bits, for a model that does not fit otherwise.
    When it loses: in speed, more so for large batches: each use dequantizes; answers change.
    Known problems: generate does not compile its layers.
    """

    axis = "quantization"
    name = "bnb-nf4"
    modes = ("infer",)
    provides = frozenset({Trait.UNCOMPILEABLE_LAYERS, Trait.TRANSFORMERS_MODEL})
    quality = 2
    quality_note = "weights are rounded to 4 bits"
    evidence = (
        Published("https://arxiv.org/abs/2305.14314", "NF4 recovers 16-bit performance on academic benchmarks"),
    )

    def obstacle(self, case: Case) -> str | None:
        return explain_unquantizable(case)

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"quant": "nf4"}

    def edits(self, case: Case) -> Edits:
        edits = make_quantized_edits(write_nf4_config(case))
        if not case.on_cpu:
            return edits
        return replace(
            edits,
            infer_imports=(*edits.infer_imports, "from bitsandbytes.nn import Linear4bit"),
            infer_after_model=(keep_unpacked(case),),
        )


def keep_unpacked(case: Case) -> str:
    """On a CPU with AVX512-BF16 bitsandbytes 0.50 packs weights anew at the first answer, for a kernel that takes blocks of 32 outputs
    by 64 inputs (functional.py: _convert_weight_packed_for_cpu). PEFT 0.21 unpacks them as if it had not, for the norms of DoRA."""
    if case.workload.train == "qlora" and case.workload.adapter == "dora":
        return KEEP_UNPACKED.format(condition="", why="DoRA reads the weights, not in the order of a kernel for CPUs")
    return KEEP_UNPACKED.format(
        condition=" and (layer.out_features % 32 or layer.in_features % 64)", why="its kernel takes whole blocks"
    )


def explain_unquantizable(case: Case) -> str | None:
    if why := explain_quantized(case):
        return why
    if case.workload.from_scratch:
        return "there are no trained weights to quantize"
    return case.stack.why_missing("bitsandbytes")


def explain_quantized(case: Case) -> str | None:
    """Why its weights are not quantized again, or ``None``."""
    return f"the checkpoint is already quantized ({case.model.quantization})" if case.model.quantization else None


def make_quantized_edits(statement: str) -> Edits:
    """``statement`` names the configuration ``quantization``."""
    return Edits(
        infer_imports=("import torch", "from transformers import BitsAndBytesConfig"),
        infer_setup=(statement,),
        infer_model_arguments=(make_argument("quantization_config", Code("quantization")),),
        requirements=("bitsandbytes",),
    )
