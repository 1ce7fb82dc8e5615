from collections.abc import Mapping
from typing import Any

from generator.case.case import Case
from generator.techniques.base import Published, Technique
from generator.techniques.edits import Edits
from generator.techniques.precision.bf16 import describe_autocast, make_autocast_edits
from generator.techniques.traits import Trait

WHOLLY_FLOAT16 = frozenset({"gemma3", "gemma3_text"})
"""Models that write nothing where hidden states are of float16 too, as in inference (under autocast they are of 32 bits):
github.com/huggingface/transformers/issues/36822"""


class Fp16(Technique):
    """Compute in float16 under autocast with a scaled loss; trained weights stay in 32 bits.

    What it does: uses the tensor cores of GPUs that have no bf16 (V100, T4).
    When it loses: wherever there is bf16, which is as fast and cannot overflow.
    Known problems: values above 65504 overflow: models pre-trained in bf16 (the T5 family) turn to NaN, and the scaler
    skips steps.
    """

    axis = "precision"
    name = "fp16"
    modes = ("train", "infer")
    provides = frozenset({Trait.LOSS_SCALING, Trait.FLOAT16_ARITHMETIC})
    evidence = (
        Published(
            "https://huggingface.co/docs/transformers/en/mixed_precision_training",
            "fp16 for GPUs before Ampere; the loss is scaled against underflow",
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        return explain_missing_fp16(case)

    def traits(self, case: Case) -> frozenset[Trait]:
        """What is served has no loss."""
        return self.provides if case.workload.mode == "train" else self.provides - {Trait.LOSS_SCALING}

    def effects(self, case: Case) -> Mapping[str, Any]:
        return describe_autocast(case, "float16")

    def edits(self, case: Case) -> Edits:
        return make_autocast_edits(case, "float16", "fp16")


def explain_missing_fp16(case: Case) -> str | None:
    if case.portable:
        return "the machine is not known, and fp16 overflows or crawls on CPUs"
    if case.on_cpu:
        return "fp16 has no fast path on CPUs: bf16 or fp32"
    if why := case.explain_missing("fp16"):
        return why
    if case.model.dtype == "bfloat16" and case.model.model_type in {"t5", "mt5", "umt5", "longt5"}:
        return f"{case.model.name} was trained in bf16 and overflows in fp16 (NaN)"
    if case.workload.mode == "infer" and case.model.model_type in WHOLLY_FLOAT16:
        return f"what the layers of {case.model.name} add up overflows in fp16, and answers are empty"
    if case.device.flops("fp16") is None:
        return f"the catalogue knows no fp16 rate of {case.device.name}"
    return None
