from collections.abc import Mapping
from typing import Any

from generator.case.case import Case
from generator.techniques.base import Published, Technique
from generator.techniques.edits import Edits, make_argument
from generator.techniques.precision.fp32 import make_weights_edits, state_mixed_precision, switch_off_autocast
from generator.techniques.traits import Trait


class Tf32(Technique):
    """Keep 32 bits, let matrix products round their inputs to 19 bits (TF32).

    What it does: without casts or loss scaling, up to eight times the matrix rate of FP32 on Ampere and later.
    When it loses: against bf16, which is faster and saves memory.
    Known problems: older GPUs and ROCm builds refuse it: TrainingArguments raises.
    """

    axis = "precision"
    name = "tf32"
    provides = frozenset({Trait.FLOAT32_ARITHMETIC})
    evidence = (
        Published(
            "https://huggingface.co/docs/transformers/v4.41.3/en/perf_train_gpu_one#tf32",
            "up to 3x the throughput of fp32 training, depending on the model",
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        return explain_missing_tf32(case)

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"weights_dtype": "float32", "tf32": True}

    def edits(self, case: Case) -> Edits:
        return make_weights_edits(
            "float32",
            training_arguments=(make_argument("tf32", True, "matrix products in TF32"), *switch_off_autocast(case)),
            accelerate=state_mixed_precision(case, "no"),
        )


def explain_missing_tf32(case: Case) -> str | None:
    """Why TrainingArguments would refuse it, or ``None``."""
    return case.explain_missing("tf32")
