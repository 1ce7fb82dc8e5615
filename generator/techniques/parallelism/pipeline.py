from generator.techniques.base import Published, Technique
from generator.techniques.layouts import explain_one_device, list_split


class Pipeline(Technique):
    """Pipeline parallelism (1F1B): consecutive layers live on different devices, micro-batches follow each other.

    Little traffic, so it suits slow links; stages idle while the pipeline fills and drains, so it needs more micro-batches than
    stages.
    """

    axis = "parallelism"
    name = "pipeline"
    emitted = False
    evidence = (
        Published("https://arxiv.org/abs/2104.04473", "pipeline across nodes, tensor parallelism inside: 52 % of peak"),
    )

    def obstacle(self, case):
        return explain_one_device(case) or (
            None if self.layouts(case) else "the layers or the global batch cannot be divided"
        )

    def layouts(self, case):
        return tuple(x for x in list_split(case, "zero1", pp=True) if x.pp > 1)
