from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from generator.case.case import Case
from generator.model.block_traits import read_block_traits
from generator.techniques.base import Published
from generator.techniques.checkpointing.full import Full
from generator.techniques.edits import Edits
from generator.techniques.traits import Trait


class Selective(Full):
    """Recompute each layer but for what attention and every second matrix product returned.

    What it does: keeps what is dear to compute and small, so that half of the products and no attention run again.
    When it loses: in memory against full checkpointing; in time where whole layers fit.
    Known problems: it looks at every operator as it is issued, which costs a host that is already late; it sees
    PyTorch's operators alone; FSDP's own recomputation cannot do it.
    """

    name = "selective"
    provides = frozenset({Trait.PARTIAL_RECOMPUTATION, Trait.SELECTED_OPERATORS})
    evidence = (
        Published(
            "https://arxiv.org/abs/2205.05198",
            "selective recomputation: 5 times less activation memory, and 90 % of the time that full recomputation costs back",
        ),
        Published(
            "https://pytorch.org/blog/activation-checkpointing-techniques/",
            "selective checkpointing by operator: between eager and full checkpointing in memory and time",
        ),
    )
    excludes: ClassVar = {
        Trait.SCORE_MATRIX: "eager attention is made of batched products: it keeps none of them",
        Trait.VARIABLE_LENGTH_KERNEL: "it sees PyTorch's operators alone: another library's attention would run again",
        # LigerRopeFunction (liger-kernel 0.8.5, ops/rope.py) writes into its inputs: kept queries would be rotated twice
        Trait.FUSED_KERNELS: "kernels of another library write over what it keeps, unseen: gradients would be wrong",
    }

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"checkpoint_every": 1, "checkpoint_operators": True}

    def traits(self, case: Case) -> frozenset[Trait]:
        return self.provides

    def obstacle(self, case: Case) -> str | None:
        if case.workload.train != "full":
            return "with adapters every second product is an adapter's: what is dear would not be what is kept"
        if read_block_traits(case.model.model_type).get("attention_dropout"):
            return "attention with dropout has to run again, for the same random numbers"
        if case.model.experts:
            return "routed experts are grouped products, which it would all run again"
        return super().obstacle(case)

    def edits(self, case: Case) -> Edits:
        edits = super().edits(case)
        return replace(
            edits,
            imports=("from selective_checkpointing import keep_selected",),
            fragments=("selective_checkpointing",),
            after_model=("keep_selected(model)",),
        )

    def write_comment(self, case: Case) -> str:
        return "recompute what is cheap in the backward pass"
