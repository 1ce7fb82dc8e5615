from generator.case.case import Case
from generator.case.layout import Layout
from generator.techniques.base import Published, Technique
from generator.techniques.layouts import explain_one_device, list_split
from generator.techniques.parallelism.tensor import divides_heads
from generator.techniques.traits import Trait


class TensorPipeline(Technique):
    """Tensor, pipeline and data parallelism together (3D): what very large models are pre-trained with.

    What it does: tensor parts inside the node, stages across nodes, copies of both for the batch.
    When it loses: wherever two of the three are enough: each adds exchanges. It needs at least eight devices.
    Known problems: neither the Trainer nor Accelerate trains with it; only ZeRO stage 1 goes with it.
    """

    axis = "parallelism"
    name = "tensor-pipeline"
    provides = frozenset({Trait.DTENSOR})
    evidence = (Published("https://arxiv.org/abs/2104.04473", "1T parameters on 3072 A100: 52 % of peak"),)

    def obstacle(self, case: Case) -> str | None:
        few = "it needs eight devices or more" if case.devices < 8 else None
        return explain_one_device(case) or few or (None if self.layouts(case) else "nothing divides evenly")

    def layouts(self, case: Case) -> tuple[Layout, ...]:
        divided = list_split(case, "zero1", tp=True, pp=True)
        return tuple(x for x in divided if x.tp > 1 and x.pp > 1 and divides_heads(case, x.tp))

    def explain_unemitted(self, case: Case) -> str | None:
        return "no project was run with it yet"
