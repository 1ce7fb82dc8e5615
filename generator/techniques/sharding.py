"""What the forms of FSDP2 share: sharded tensors, Accelerate's settings, a GPU of which Accelerate can shard."""

from __future__ import annotations

from typing import ClassVar

from generator.case.case import Case
from generator.case.layout import Layout
from generator.techniques.base import Technique
from generator.techniques.edits import Edits
from generator.techniques.launch import make_fsdp_edits
from generator.techniques.layouts import explain_one_device, explain_uneven, list_sharded
from generator.techniques.traits import Trait


class Fsdp(Technique):
    """Base of the forms of FSDP2.

    ``strategy`` is the layouts'; ``reshard``: weights are let go after the forward pass.
    """

    axis = "parallelism"
    strategy: ClassVar[str] = "fsdp_full_shard"
    reshard: ClassVar[bool] = True
    adds = 2  # accelerate.yaml, and its launcher
    provides = frozenset({Trait.DTENSOR})

    def obstacle(self, case: Case) -> str | None:
        return explain_one_device(case) or explain_unsharded(case) or explain_uneven(case, self.layouts(case))

    def layouts(self, case: Case) -> tuple[Layout, ...]:
        return list_sharded(case, self.strategy)

    def edits(self, case: Case) -> Edits:
        return make_fsdp_edits(case, reshard=self.reshard)


def explain_unsharded(case: Case) -> str | None:
    """Why Accelerate would not shard here, or ``None``."""
    return case.explain_missing("fsdp")
