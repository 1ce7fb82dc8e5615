from generator.case.case import Case
from generator.case.layout import Layout
from generator.techniques.base import Published, Technique
from generator.techniques.layouts import explain_one_device, list_split


class Pipeline(Technique):
    """Pipeline parallelism (1F1B): consecutive layers live on different devices, micro-batches follow each other.

    What it does: sends only the hidden states at the cuts, so it suits slow links.
    When it loses: with few micro-batches: stages idle while the pipeline fills and drains, so it needs more than
    stages.
    Known problems: neither the Trainer nor Accelerate trains with it; only ZeRO stage 1 goes with it.
    """

    axis = "parallelism"
    name = "pipeline"
    emitted = False
    evidence = (
        Published("https://arxiv.org/abs/2104.04473", "pipeline across nodes, tensor parallelism inside: 52 % of peak"),
    )

    def obstacle(self, case: Case) -> str | None:
        return explain_one_device(case) or (
            None if self.layouts(case) else "the layers or the global batch cannot be divided"
        )

    def layouts(self, case: Case) -> tuple[Layout, ...]:
        return tuple(x for x in list_split(case, "zero1", pp=True) if x.pp > 1)
