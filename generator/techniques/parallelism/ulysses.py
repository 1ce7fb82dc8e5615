from typing import ClassVar

from generator.case.case import Case
from generator.case.layout import Layout
from generator.case.strategies import ULYSSES
from generator.techniques.base import Published
from generator.techniques.layouts import list_split
from generator.techniques.looped import WHOLE_LAYERS_TYPES, Looped, explain_windows
from generator.techniques.traits import Trait


class Ulysses(Looped):
    """Ulysses sequence parallelism: sequences are divided, and for attention the heads instead (all-to-all), on FSDP2.

    What it does: as context parallelism with less traffic, and every device attends over the whole sequence.
    When it loses: where a sequence's activations fit one device.
    Known problems: its size must divide the key-value heads and the sequence; run on CPUs over gloo, never on GPUs.
    """

    name = "ulysses"
    model_types: ClassVar = WHOLE_LAYERS_TYPES
    trained: ClassVar = ("full", "lora")
    adapts_mixtures: ClassVar = True
    provides = frozenset({Trait.DTENSOR})
    needs: ClassVar = {Trait.SDPA: "the exchange of heads is written for SDPA"}
    excludes: ClassVar = {Trait.FLATTENED_ROWS: "each process would have the limits of its own part only"}
    evidence = (
        Published("https://arxiv.org/abs/2309.14509", "2.5 times faster than tensor-based sequence parallelism"),
    )

    def explain_model(self, case: Case) -> str | None:
        return None if case.model.kind == "decoder" else "it is written for causal language models"

    def uneven(self, case: Case) -> str:
        return "the heads or the batch cannot be divided evenly"

    def layouts(self, case: Case) -> tuple[Layout, ...]:
        divided = list_split(case, "fsdp_full_shard", sequence_form=ULYSSES)
        model, seq_len = case.model, case.workload.seq_len
        heads = [n for n in (model.heads, model.kv_heads) if n]
        return tuple(x for x in divided if x.cp > 1 and all(n % x.cp == 0 for n in heads) and seq_len % x.cp == 0)

    def explain_unemitted(self, case: Case) -> str | None:
        return explain_windows(case) or super().explain_unemitted(case)
