from typing import ClassVar

from generator.case.case import Case
from generator.case.layout import Layout
from generator.techniques.base import Published
from generator.techniques.layouts import list_split
from generator.techniques.looped import RUN_TYPES, TENSOR_FAULTS
from generator.techniques.parallelism.pipeline import Pipeline
from generator.techniques.parallelism.tensor import divides_model, explain_dropout
from generator.techniques.traits import Trait


class TensorPipeline(Pipeline):
    """Tensor, pipeline and data parallelism together (3D): what very large models are pre-trained with.

    What it does: tensor parts inside the node, stages across nodes; copies of both, over which FSDP2 divides gradients and
    states.
    When it loses: wherever two of the three are enough: each adds exchanges.
    Known problems: those of tensor and of pipeline parallelism.
    """

    name = "tensor-pipeline"
    model_types: ClassVar = RUN_TYPES - TENSOR_FAULTS.keys()
    faults: ClassVar = {**TENSOR_FAULTS, **Pipeline.faults}
    adapts_mixtures: ClassVar = False
    strategy: ClassVar[str] = "fsdp_shard_grad_op"
    provides = frozenset({Trait.DTENSOR})
    evidence = (Published("https://arxiv.org/abs/2104.04473", "1T parameters on 3072 A100: 52 % of peak"),)

    def uneven(self, case: Case) -> str:
        few = "it needs four devices or more" if case.devices < 4 else None
        return few or "the heads, the layers or the global batch cannot be divided"

    def layouts(self, case: Case) -> tuple[Layout, ...]:
        divided = list_split(case, self.strategy, tp=True, pp=True)
        return tuple(x for x in divided if x.tp > 1 and x.pp > 1 and divides_model(case, x.tp))

    def explain_unemitted(self, case: Case) -> str | None:
        return explain_dropout(case) or super().explain_unemitted(case)
