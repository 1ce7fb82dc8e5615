from collections.abc import Mapping
from typing import Any

from generator.case.case import Case
from generator.techniques.base import Technique
from generator.techniques.edits import Argument, Code, Edits, make_argument
from generator.techniques.launch import is_by_accelerate, is_by_loop
from generator.techniques.traits import Trait

AS_STORED = 0.02
"""of a step: twice what another setting has to gain"""


class Fp32(Technique):
    """Compute and keep everything in 32 bits.

    What it does: weights, arithmetic and gradients in one format, without casts.
    When it loses: on a GPU with tensor cores, most of which it leaves idle.
    Known problems: none that we know of; on a CPU without bf16 instructions it is the fastest there is.
    """

    axis = "precision"
    name = "fp32"
    baseline = True
    modes = ("train", "infer")
    provides = frozenset({Trait.FLOAT32_ARITHMETIC})

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"weights_dtype": "float32"}

    def least_gain(self, case: Case) -> float:
        """A checkpoint of 16 bits is as plain in them: twice its bytes are for where they are faster."""
        return AS_STORED if case.model.dtype in ("bfloat16", "float16") else 0.0

    def edits(self, case: Case) -> Edits:
        return make_weights_edits(
            "float32", training_arguments=switch_off_autocast(case), accelerate=state_mixed_precision(case, "no")
        )


def switch_off_autocast(case: Case) -> tuple[Argument, ...]:
    """TRL's SFTConfig switches bf16 on unless it is told not to; TrainingArguments does not."""
    by_trl = case.workload.task == "sft" and not is_by_loop(case.layout)
    return (make_argument("bf16", False, "TRL would switch it on"),) if by_trl else ()


def state_mixed_precision(case: Case, precision: str) -> tuple[tuple[str, object], ...]:
    """The line of accelerate.yaml, where there is one: it must say the same as TrainingArguments, which would else follow it."""
    return (("mixed_precision", precision),) if is_by_accelerate(case.layout) else ()


def make_weights_edits(
    dtype: str,
    why: str = "",
    training_arguments: tuple[Argument, ...] = (),
    accelerate: tuple[tuple[str, object], ...] = (),
) -> Edits:
    """Load the weights as ``dtype``, for training and for inference (Transformers 5 otherwise takes the checkpoint's)."""
    stored = (make_argument("dtype", Code(f"torch.{dtype}"), why),)
    return Edits(
        imports=("import torch",),
        infer_imports=("import torch",),
        model_arguments=stored,
        infer_model_arguments=stored,
        training_arguments=training_arguments,
        accelerate=accelerate,
    )
