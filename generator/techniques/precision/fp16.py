from generator.techniques.base import Published, Technique
from generator.techniques.precision.bf16 import autocast_edits, autocast_effects


class Fp16(Technique):
    """Compute in float16 under autocast with a scaled loss; trained weights stay in 32 bits.

    For GPUs with tensor cores but without bf16 (V100, T4). Values above 65504 overflow: models pre-trained in bf16 (the T5
    family) turn to NaN, and the scaler skips steps.
    """

    axis = "precision"
    name = "fp16"
    modes = ("train", "infer")
    evidence = (
        Published(
            "https://huggingface.co/docs/transformers/en/mixed_precision_training",
            "fp16 for GPUs before Ampere; the loss is scaled against underflow",
        ),
    )

    def obstacle(self, case):
        return lacks_fp16(case)

    def effects(self, case):
        return autocast_effects(case, "float16")

    def edits(self, case):
        return autocast_edits(case, "float16", "fp16")


def lacks_fp16(case) -> str | None:
    if case.portable:
        return "the machine is not known, and fp16 overflows or crawls on CPUs"
    if case.on_cpu:
        return "fp16 has no fast path on CPUs: bf16 or fp32"
    if case.on_cuda and case.capability < (7, 0):
        return f"fp16 tensor cores begin with compute capability 7.0, {case.device.name} has {case.device.compute_capability}"
    if case.on_cuda and case.capability >= (8, 0):
        return f"{case.device.name} has bf16, which is as fast and cannot overflow"
    if case.model.dtype == "bfloat16" and case.model.model_type in {"t5", "mt5", "umt5", "longt5"}:
        return f"{case.model.name} was trained in bf16 and overflows in fp16 (NaN)"
    if case.device.flops("fp16") is None:
        return f"the catalogue knows no fp16 rate of {case.device.name}"
    return None
