from typing import ClassVar

from generator.case.case import Case
from generator.case.layout import Layout
from generator.techniques.base import Published
from generator.techniques.layouts import list_split
from generator.techniques.looped import TENSOR_FAULTS, WHOLE_LAYERS_TYPES, Looped
from generator.techniques.parallelism.tensor import divides_model, explain_dropout, explain_indivisible
from generator.techniques.traits import Trait


class TensorFsdp2(Looped):
    """Tensor parallelism inside a node, and each part of the matrices sharded over groups of devices (FSDP2).

    What it does: no device holds a whole layer, and what is gathered for a layer is a tensor part of it.
    When it loses: wherever FSDP2 alone fits: each adds exchanges.
    Known problems: as tensor; the global batch must be divided over the groups.
    """

    name = "tensor-fsdp2"
    model_types: ClassVar = WHOLE_LAYERS_TYPES - TENSOR_FAULTS.keys()
    faults: ClassVar = TENSOR_FAULTS
    trained: ClassVar = ("full", "lora")
    provides = frozenset({Trait.DTENSOR})
    evidence = (
        Published(
            "https://arxiv.org/abs/2410.06511",
            "TorchTitan: FSDP2 with tensor parallelism, Llama 3.1 70B on 256 H100",
        ),
    )

    def explain_model(self, case: Case) -> str | None:
        return "packed 4-bit weights cannot be divided" if case.workload.train == "qlora" else None

    def uneven(self, case: Case) -> str:
        return explain_indivisible(case)

    def layouts(self, case: Case) -> tuple[Layout, ...]:
        divided = list_split(case, "fsdp_full_shard", tp=True)
        return tuple(x for x in divided if x.tp > 1 and x.dp > 1 and divides_model(case, x.tp))

    def explain_unemitted(self, case: Case) -> str | None:
        return explain_dropout(case) or super().explain_unemitted(case)
