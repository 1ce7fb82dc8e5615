from generator.techniques.base import Published, Technique
from generator.techniques.edits import Code, Edits, argument
from generator.techniques.trained.qlora import nf4_config


class BnbNf4(Technique):
    """Serve the weights in 4 bits (bitsandbytes NF4).

    For a model that does not fit otherwise. Answers change; each use dequantizes, so large batches get slower.
    """

    axis = "quantization"
    name = "bnb-nf4"
    modes = ("infer",)
    quality = 2
    quality_note = "weights are rounded to 4 bits"
    evidence = (
        Published("https://arxiv.org/abs/2305.14314", "NF4 recovers 16-bit performance on academic benchmarks"),
    )

    def obstacle(self, case):
        return quantizer_obstacle(case)

    def effects(self, case):
        return {"quant": "nf4"}

    def edits(self, case):
        return quantized_edits(nf4_config(case))


def quantizer_obstacle(case) -> str | None:
    if case.model.quantization:
        return f"the checkpoint is already quantized ({case.model.quantization})"
    if case.workload.from_scratch:
        return "there are no trained weights to quantize"
    return case.stack.why_missing("bitsandbytes")


def quantized_edits(statement: str) -> Edits:
    """``statement`` names the configuration ``quantization``."""
    return Edits(
        infer_imports=("import torch", "from transformers import BitsAndBytesConfig"),
        infer_setup=(statement,),
        infer_model_arguments=(argument("quantization_config", Code("quantization")),),
        requirements=("bitsandbytes",),
    )
