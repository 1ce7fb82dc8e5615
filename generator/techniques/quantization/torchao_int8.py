from collections.abc import Mapping
from typing import Any, ClassVar

from generator.case.case import Case
from generator.techniques.base import Published, Technique
from generator.techniques.edits import Code, Edits, make_argument
from generator.techniques.quantization.bnb_nf4 import explain_quantized
from generator.techniques.traits import Trait

NOT_IN_BF16 = {
    Trait.FLOAT32_ARITHMETIC: "in 32 bits nothing was gained by weights of torchao: bf16, not {other}",
    Trait.FLOAT16_ARITHMETIC: "integers that are scaled after the product overflow float16: bf16, not {other}",
}


class TorchaoInt8(Technique):
    """Serve 8-bit weights of torchao, which a compiled step unpacks as it reads them (weight-only).

    What it does: halves what every token reads from memory against 16 bits, in Transformers itself.
    When it loses: for prompts, and where nothing is compiled: each layer is written out in 16 bits before it multiplies.
    Known problems: answers change a little; the output layer and experts in one tensor stay in 16 bits; its 8-bit integers are
    scaled after the product, which overflows fp16.
    """

    axis = "quantization"
    name = "torchao-int8"
    modes = ("infer",)
    provides = frozenset({Trait.UNPACKED_BY_OPERATORS, Trait.TRANSFORMERS_MODEL})
    needs: ClassVar = {
        Trait.FUSES_UNPACKING: "with compile={other} every token would write all weights out in 16 bits first; only {able} can fuse that"
    }
    excludes: ClassVar = NOT_IN_BF16
    quality = 1
    quality_note = "weights are rounded to 8 bits"
    evidence = (
        Published(
            "https://github.com/meta-pytorch/gpt-fast",
            "int8 weight-only, compiled: 155.6 tokens/s for 104.9 in bf16 (Llama-2-7B, A100)",
        ),
        Published("https://arxiv.org/abs/2208.07339", "8-bit weights: no degradation up to 175B"),
    )

    def obstacle(self, case: Case) -> str | None:
        return explain_uncompiled(case)

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"quant": "torchao-int8"}

    def edits(self, case: Case) -> Edits:
        return make_torchao_edits("Int8WeightOnlyConfig", "Int8WeightOnlyConfig()")


def explain_uncompiled(case: Case) -> str | None:
    """Why torchao's weights are not used in a case, or ``None``."""
    workload = case.workload
    if why := explain_quantized(case):
        return why
    if workload.from_scratch:
        return "there are no trained weights to quantize"
    if workload.serves and workload.concurrency > 1:
        return "of several answers at a time no step is compiled, and without that every token would unpack all weights anew"
    if workload.served_adapter or workload.train != "full":
        return "an adapter beside torchao's weights was not run"
    if not workload.task_facts.generates:
        return "it is for tokens one by one, and large products take longer with it"
    if case.on_cpu:
        # SmolLM2-135M's first six layers, one thread of Zen 4: Inductor unpacks apart from oneDNN's products
        return "on a CPU a compiled step is no faster with its weights (52.1 tokens/s, 52.8 in bf16): engines multiply packed ones as they are"
    return case.explain_missing("bf16") or case.stack.why_missing("torchao")


def make_torchao_edits(name: str, settings: str) -> Edits:
    """``name`` is a class of torchao.quantization, ``settings`` one of it."""
    return Edits(
        infer_imports=("from transformers import TorchAoConfig", f"from torchao.quantization import {name}"),
        infer_setup=(f"quantization = TorchAoConfig({settings})",),
        infer_model_arguments=(make_argument("quantization_config", Code("quantization")),),
        requirements=("torchao",),
    )
