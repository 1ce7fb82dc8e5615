from generator.techniques.base import Published, Technique
from generator.techniques.edits import argument
from generator.techniques.precision.bf16 import lacks_bf16
from generator.techniques.precision.fp32 import no_autocast, told, weights_edits


class Bf16Pure(Technique):
    """Keep weights, gradients and optimizer states in bfloat16: no fp32 copy of anything.

    A third to a half of the memory of mixed precision. Updates smaller than 1/256 of a weight are rounded away, so long or
    low-learning-rate training can stall: watch the loss against a short mixed-precision run.
    """

    axis = "precision"
    name = "bf16-pure"
    quality = 2
    quality_note = "weights are updated in bf16: updates below 1/256 of a weight are lost"
    evidence = (
        Published(
            "https://arxiv.org/abs/2010.06192",
            "16-bit-only training loses accuracy with nearest rounding; stochastic rounding or Kahan summation closes the gap",
        ),
    )

    def obstacle(self, case):
        if case.workload.train != "full":
            return "adapters are small: their fp32 weights cost nothing"
        return lacks_bf16(case)

    def effects(self, case):
        return {"weights_dtype": "bfloat16", "tf32": True}

    def edits(self, case):
        tf32 = (argument("tf32", True),) if case.on_cuda else ()
        return weights_edits(
            "bfloat16",
            "no fp32 copy",
            training_arguments=(*tf32, *no_autocast(case)),
            accelerate=told(case, "no"),
        )
