from collections.abc import Mapping
from typing import Any

from generator.case.case import Case
from generator.techniques.base import Published, Technique
from generator.techniques.edits import Edits, make_argument
from generator.techniques.precision.bf16 import explain_missing_bf16
from generator.techniques.precision.fp32 import make_weights_edits, state_mixed_precision, switch_off_autocast
from generator.techniques.precision.tf32 import explain_missing_tf32
from generator.techniques.traits import Trait


class Bf16Pure(Technique):
    """Keep weights, gradients and optimizer states in bfloat16: no fp32 copy of anything.

    What it does: takes a third to a half of the memory of mixed precision.
    When it loses: in long or low-learning-rate training: updates smaller than 1/256 of a weight are rounded away.
    Known problems: the loss can stall: watch it against a short mixed-precision run.
    """

    axis = "precision"
    name = "bf16-pure"
    provides = frozenset({Trait.NO_MASTER_WEIGHTS})
    quality = 2
    quality_note = "weights are updated in bf16: updates below 1/256 of a weight are lost"
    evidence = (
        Published(
            "https://arxiv.org/abs/2010.06192",
            "16-bit-only training loses accuracy with nearest rounding; stochastic rounding or Kahan summation closes the gap",
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        if case.workload.train != "full":
            return "adapters are small: their fp32 weights cost nothing"
        return explain_missing_bf16(case)

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"weights_dtype": "bfloat16", "tf32": explain_missing_tf32(case) is None}

    def edits(self, case: Case) -> Edits:
        tf32 = () if explain_missing_tf32(case) else (make_argument("tf32", True),)
        return make_weights_edits(
            "bfloat16",
            "no fp32 copy",
            training_arguments=(*tf32, *switch_off_autocast(case)),
            accelerate=state_mixed_precision(case, "no"),
        )
