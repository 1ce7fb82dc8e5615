from typing import ClassVar

from generator.case.case import Case
from generator.case.layout import Layout
from generator.techniques.base import Published
from generator.techniques.layouts import list_split
from generator.techniques.looped import Looped, explain_windows
from generator.techniques.traits import Trait


class Pipeline(Looped):
    """Pipeline parallelism (1F1B): consecutive layers live on different devices, micro-batches follow each other.

    What it does: sends only the hidden states at the cuts, so it suits slow links.
    When it loses: with few micro-batches: stages idle while the pipeline fills and drains, so it needs more than
    stages.
    Known problems: each process reads the whole model before it keeps its layers; neither the Trainer nor Accelerate
    trains with it; run on CPUs over gloo, never on GPUs.
    """

    name = "pipeline"
    faults: ClassVar = {"gemma3_text": "each kind of its layers rotates positions in its own way, and stages know one"}
    trained: ClassVar = ("full", "lora")
    adapters: ClassVar = ("lora", "rslora", "dora")
    adapts_mixtures: ClassVar = True
    strategy: ClassVar[str] = "none"
    needs: ClassVar = {Trait.SDPA: "its stages give attention no mask, and were not run with {other}"}
    evidence = (
        Published("https://arxiv.org/abs/2104.04473", "pipeline across nodes, tensor parallelism inside: 52 % of peak"),
    )

    def uneven(self, case: Case) -> str:
        return "the layers or the global batch cannot be divided"

    def layouts(self, case: Case) -> tuple[Layout, ...]:
        divided = list_split(case, self.strategy, pp=True)
        return tuple(x for x in divided if x.pp > 1 and (x.dp > 1) == (self.strategy != "none"))

    def explain_unemitted(self, case: Case) -> str | None:
        return explain_windows(case) or super().explain_unemitted(case)
