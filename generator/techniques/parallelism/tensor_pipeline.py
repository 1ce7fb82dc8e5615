from generator.techniques.base import Published
from generator.techniques.layouts import explain_one_device, list_split
from generator.techniques.parallelism.tensor import Tensor, divides_heads


class TensorPipeline(Tensor):
    """Tensor, pipeline and data parallelism together (3D): what very large models are pre-trained with.

    Tensor parts inside the node, stages across nodes, copies of both for the batch. At least eight devices.
    """

    name = "tensor-pipeline"
    modes = ("train",)
    evidence = (Published("https://arxiv.org/abs/2104.04473", "1T parameters on 3072 A100: 52 % of peak"),)

    def obstacle(self, case):
        few = "it needs eight devices or more" if case.devices < 8 else None
        return explain_one_device(case) or few or (None if self.layouts(case) else "nothing divides evenly")

    def clash(self, other, case):
        if other.axis == "optimizer" and other.name not in ("adamw", "adamw-fused"):
            return f"{other.name} was not written for sharded tensors (DTensor)"
        if other.id == "trained=qlora":
            return "packed 4-bit weights cannot be divided"
        return None

    def layouts(self, case):
        found = list_split(case, "zero1", tp=True, pp=True)
        return tuple(x for x in found if x.tp > 1 and x.pp > 1 and divides_heads(case, x.tp))
