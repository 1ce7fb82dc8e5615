from generator.techniques.base import Published, Technique
from generator.techniques.edits import Edits, argument

COLD_SECONDS = {"cpu": 110.0, "gpu": 60.0}
"""First step of a compiled model. CPU: 8 s with a warm cache, up to 110 s cold, 17M Llama on two cores (measured 2026-11).
GPU: 30 to 60 s stated by the Accelerate guide for a full graph (docs "usage_guides/compilation"), the slow end."""


class Default(Technique):
    """torch.compile with Inductor: fuse the pointwise operators of the whole step.

    Pays over a run that is long against its compilation, with shapes that stay the same. Quantized weights and changing
    sequence lengths make it recompile or fail; before Ampere it gains little.
    """

    axis = "compile"
    name = "default"
    compiles = True
    evidence = (
        Published(
            "https://huggingface.co/docs/transformers/en/main_classes/trainer#transformers.TrainingArguments",
            "torch_compile: 20 to 50 % faster on Ampere and later",
        ),
    )

    def obstacle(self, case):
        if case.portable:
            return "the machine is not known: it may lack a compiler, and older GPUs gain nothing"
        if case.on_cuda and case.capability < (8, 0):
            return f"torch.compile gains little before Ampere; {case.device.name} has {case.device.compute_capability}"
        if case.workload.train == "qlora":
            return "a quantized model must not be compiled for training (Transformers refuses it)"
        return None

    def clash(self, other, case):
        if other.axis == "packing" and other.name != "packed":
            return "batches of changing length would compile again for every new shape"
        if other.axis == "loss" and other.name == "liger":
            return "Liger's kernels and Inductor fuse the same operators"
        return None

    def effects(self, case):
        return {"compile": "default"}

    def once_seconds(self, case):
        return COLD_SECONDS["cpu" if case.on_cpu else "gpu"]

    def edits(self, case):
        return Edits(training_arguments=(argument("torch_compile", True, "shapes are fixed; the first step compiles"),))
