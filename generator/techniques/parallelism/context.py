from typing import ClassVar

from generator.case.case import Case
from generator.case.layout import Layout
from generator.case.strategies import GATHER
from generator.techniques.base import Published
from generator.techniques.layouts import list_split
from generator.techniques.looped import WHOLE_LAYERS_TYPES, Looped, explain_windows
from generator.techniques.traits import Trait


class Context(Looped):
    """Context parallelism: every sequence is divided over devices, which gather each other's keys and values.

    What it does: activations of one sequence over several devices; each has an early and a late part, so that causal
    attention is as much work on all.
    When it loses: where a sequence's activations fit one device, and against Ulysses where the heads can be divided.
    Known problems: causal SDPA without sliding windows only; weights stay whole on every device; run on CPUs over gloo,
    never on GPUs.
    """

    name = "context"
    model_types: ClassVar = WHOLE_LAYERS_TYPES
    trained: ClassVar = ("full", "lora")
    adapters: ClassVar = ("lora", "rslora", "dora")
    adapts_mixtures: ClassVar = True
    strategy: ClassVar[str] = "summed_copies"
    needs: ClassVar = {Trait.SDPA: "attention over gathered keys and values is written for SDPA"}
    excludes: ClassVar = {
        Trait.LENGTH_GROUPS: "the sequence is cut into equal parts",
        Trait.FLATTENED_ROWS: "each device attends over one causal sequence, and texts would see each other",
    }
    evidence = (
        Published(
            "https://arxiv.org/abs/2407.21783",
            "Llama 3: context parallelism by all-gather of keys and values, to 128k tokens",
        ),
    )

    def explain_model(self, case: Case) -> str | None:
        return None if case.model.kind == "decoder" else "attention must be causal"

    def layouts(self, case: Case) -> tuple[Layout, ...]:
        divided = list_split(case, self.strategy, sequence_form=GATHER)
        return tuple(x for x in divided if x.cp > 1 and case.workload.seq_len % (2 * x.cp) == 0)

    def explain_unemitted(self, case: Case) -> str | None:
        return explain_windows(case) or super().explain_unemitted(case)
