from collections.abc import Mapping
from typing import Any, ClassVar

from generator.case.case import Case
from generator.techniques.adapter.lora import explain_other_adapter
from generator.techniques.base import Published, Technique
from generator.techniques.traits import Trait


class Dora(Technique):
    """Low-rank adapters of the weights' direction, and a trained magnitude of each output (DoRA).

    What it does: learns more like full training than LoRA does, most at low ranks.
    When it loses: in time: every forward pass takes the norm of every adapted weight, with its adapter added.
    Known problems: a float32 copy of a weight at a time; PEFT has it for linear layers, not for experts that are one tensor.
    """

    axis = "adapter"
    name = "dora"
    evidence = (
        Published("https://arxiv.org/abs/2402.09353", "LLaMA-7B, commonsense reasoning: 78.4 % against LoRA's 74.7 %"),
    )
    excludes: ClassVar = {
        Trait.DTENSOR: "DoRA takes the norm of whole weights, and was not run on sharded ones (DTensor)",
        Trait.DEEPSPEED_ENGINE: "DoRA takes the norm of whole weights in float32, and was not run under DeepSpeed",
    }

    def obstacle(self, case: Case) -> str | None:
        if other := explain_other_adapter(case, self.name):
            return other
        if case.model.experts:
            return "PEFT has no DoRA of experts that are one tensor (ParamWrapper refuses use_dora)"
        if case.model.quantization:
            return f"not run on a checkpoint that is already quantized ({case.model.quantization})"
        return None

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"adapter": "dora"}
