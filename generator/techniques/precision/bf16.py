from dataclasses import replace

from generator.techniques.base import Published, Technique
from generator.techniques.edits import Code, Edits, argument
from generator.techniques.launch import is_by_deepspeed
from generator.techniques.precision.fp32 import told, weights_edits
from generator.techniques.precision.tf32 import lacks_tf32


class Bf16(Technique):
    """Compute in bfloat16 under autocast; trained weights stay in 32 bits.

    The range of fp32, so no loss scaling. Frozen and served weights are stored in bf16 too. Does not pay on hardware that
    only emulates it: PyTorch reports support on V100, T4 and plain AVX-512 CPUs, where it is slower than fp32.
    """

    axis = "precision"
    name = "bf16"
    modes = ("train", "infer")
    evidence = (
        Published(
            "https://huggingface.co/docs/transformers/en/mixed_precision_training",
            "bf16 needs no loss scaling; Ampere and later",
        ),
    )

    def obstacle(self, case):
        return lacks_bf16(case)

    def effects(self, case):
        sums = {"sums_dtype": "float32"} if sums_in_fp32(case) else {}
        return {**autocast_effects(case, "bfloat16"), **sums}

    def edits(self, case):
        edits = autocast_edits(case, "bfloat16", "bf16")
        return replace(edits, deepspeed=(("data_types.grad_accum_dtype", "fp32"),)) if sums_in_fp32(case) else edits


def sums_in_fp32(case) -> bool:
    """DeepSpeed would sum bf16 gradients in bf16: another result than one device gives."""
    return case.workload.mode == "train" and is_by_deepspeed(case.layout)


def lacks_bf16(case) -> str | None:
    """Why bf16 is not worth asking for: no bf16 arithmetic in the hardware (never PyTorch's own answer, which counts emulation)."""
    if case.portable:
        return "the machine is not known, and bf16 is slow where it is only emulated"
    if case.on_cpu:
        native = case.cpu_features & {"avx512_bf16", "amx_bf16", "bf16"}
        return (
            None
            if native
            else "this CPU has no bf16 instructions (avx512_bf16, amx_bf16): emulation takes 3x the time of fp32"
        )
    if case.on_cuda and case.capability < (8, 0):
        return f"bf16 needs compute capability 8.0 or more, {case.device.name} has {case.device.compute_capability}"
    if case.device.flops("bf16") is None:
        return f"the catalogue knows no bf16 rate of {case.device.name}"
    return None


def autocast_effects(case, dtype: str) -> dict[str, object]:
    """Trained weights in 32 bits under autocast; frozen or served ones in 16."""
    if case.workload.mode == "infer":
        return {"weights_dtype": dtype}
    stored = "float32" if case.workload.train == "full" else dtype
    return {"weights_dtype": stored, "autocast_dtype": dtype, "tf32": lacks_tf32(case) is None}


def autocast_edits(case, dtype: str, flag: str) -> Edits:
    full = case.workload.train == "full"
    kept = full and not is_by_deepspeed(case.layout)
    arguments = [argument(flag, True, f"compute in {flag}" + (", keep weights in fp32" if kept else ""))]
    if lacks_tf32(case) is None:
        arguments.append(argument("tf32", True, "what stays in fp32 uses TF32 products"))
    if case.workload.mode == "infer":
        return weights_edits(dtype)
    if not full:
        return weights_edits(
            dtype, "frozen weights in 16 bits", training_arguments=tuple(arguments), accelerate=told(case, flag)
        )
    if is_by_deepspeed(case.layout):
        return weights_edits(dtype, "DeepSpeed keeps an fp32 master copy", training_arguments=tuple(arguments))
    stored = (argument("dtype", Code("torch.float32"), f"trained weights stay in fp32, {flag} is for the arithmetic"),)
    served = (argument("dtype", Code(f"torch.{dtype}")),)
    return Edits(
        imports=("import torch",),
        infer_imports=("import torch",),
        model_arguments=stored,
        infer_model_arguments=served,
        training_arguments=tuple(arguments),
        accelerate=told(case, flag),
    )
