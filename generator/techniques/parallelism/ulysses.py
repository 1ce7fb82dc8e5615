from typing import ClassVar

from generator.case.case import Case
from generator.case.layout import Layout
from generator.case.strategies import ULYSSES
from generator.techniques.base import Published, Technique
from generator.techniques.layouts import explain_one_device, list_split
from generator.techniques.traits import Trait


class Ulysses(Technique):
    """Ulysses sequence parallelism (DeepSpeed): sequences are divided, and for attention the heads instead.

    What it does: as context parallelism with less traffic, on top of ZeRO-3.
    When it loses: where a sequence's activations fit one device.
    Known problems: its size must divide the heads and the sequence; SDPA attends across packed texts; every batch needs
    position_ids.
    """

    axis = "parallelism"
    name = "ulysses"
    emitted = False
    provides = frozenset({Trait.DEEPSPEED_ENGINE})
    excludes: ClassVar = {
        Trait.SCORE_MATRIX: "it needs SDPA or flash attention",
        Trait.FLATTENED_ROWS: "each process would have the limits of its own part only",
    }
    evidence = (
        Published("https://arxiv.org/abs/2309.14509", "2.5 times faster than tensor-based sequence parallelism"),
    )

    def obstacle(self, case: Case) -> str | None:
        if case.model.kind != "decoder":
            return "it is written for causal language models"
        return explain_one_device(case) or (
            None if self.layouts(case) else "the heads or the batch cannot be divided evenly"
        )

    def layouts(self, case: Case) -> tuple[Layout, ...]:
        divided = list_split(case, "zero3", sequence_form=ULYSSES)
        seq_len = case.workload.seq_len
        return tuple(x for x in divided if x.cp > 1 and case.model.heads % x.cp == 0 and seq_len % x.cp == 0)
