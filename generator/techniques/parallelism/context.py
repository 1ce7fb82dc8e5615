from typing import ClassVar

from generator.case.case import Case
from generator.case.layout import Layout
from generator.case.strategies import RING
from generator.techniques.base import Published, Technique
from generator.techniques.layouts import explain_one_device, list_split
from generator.techniques.traits import Trait


class Context(Technique):
    """Context parallelism (ring attention): every sequence is divided over devices, keys and values go around.

    What it does: activations of one sequence over several devices, on top of FSDP2.
    When it loses: where a sequence's activations fit one device, and against Ulysses where the heads can be divided.
    Known problems: SDPA and causal masks only; Accelerate refuses it on CPUs.
    """

    axis = "parallelism"
    name = "context"
    emitted = False
    provides = frozenset({Trait.DTENSOR, Trait.FSDP_RECOMPUTATION})
    needs: ClassVar = {Trait.SDPA: "ring attention is written for SDPA"}
    excludes: ClassVar = {
        Trait.LENGTH_GROUPS: "the sequence is cut into equal parts",
        Trait.FLATTENED_ROWS: "a ring attends over one causal sequence, and texts would see each other",
    }
    evidence = (
        Published("https://arxiv.org/abs/2310.01889", "ring attention: sequence length grows with the devices"),
    )

    def obstacle(self, case: Case) -> str | None:
        if case.model.kind != "decoder":
            return "ring attention needs a causal mask"
        return explain_one_device(case) or (None if self.layouts(case) else "nothing divides evenly")

    def layouts(self, case: Case) -> tuple[Layout, ...]:
        divided = list_split(case, "fsdp_full_shard", sequence_form=RING)
        return tuple(x for x in divided if x.cp > 1 and case.workload.seq_len % (2 * x.cp) == 0)
