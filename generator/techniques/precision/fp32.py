from generator.techniques.base import Technique
from generator.techniques.edits import Argument, Code, Edits, argument
from generator.techniques.launch import is_by_accelerate


class Fp32(Technique):
    """Compute and keep everything in 32 bits.

    Always works. On a GPU with tensor cores it leaves most of the chip idle; on a CPU without bf16 instructions it is
    the fastest there is.
    """

    axis = "precision"
    name = "fp32"
    baseline = True
    modes = ("train", "infer")

    def effects(self, case):
        return {"weights_dtype": "float32"}

    def edits(self, case):
        return weights_edits("float32", training_arguments=no_autocast(case), accelerate=told(case, "no"))


def no_autocast(case) -> tuple[Argument, ...]:
    """TRL's SFTConfig switches bf16 on unless it is told not to; TrainingArguments does not."""
    return (argument("bf16", False, "TRL would switch it on"),) if case.workload.task == "sft" else ()


def told(case, precision: str) -> tuple[tuple[str, object], ...]:
    """The line of accelerate.yaml, where there is one: it must say the same as TrainingArguments, which would else follow it."""
    return (("mixed_precision", precision),) if is_by_accelerate(case.layout) else ()


def weights_edits(dtype: str, why: str = "", **more) -> Edits:
    """Load the weights as ``dtype``, for training and for inference (Transformers 5 otherwise takes the checkpoint's)."""
    stored = (argument("dtype", Code(f"torch.{dtype}"), why),)
    return Edits(
        imports=("import torch",),
        infer_imports=("import torch",),
        model_arguments=stored,
        infer_model_arguments=stored,
        **more,
    )
