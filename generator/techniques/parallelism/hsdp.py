from generator.techniques.base import Published
from generator.techniques.layouts import explain_one_device, list_sharded_in_node
from generator.techniques.parallelism.fsdp2 import Fsdp2, needs_cuda


class Hsdp(Fsdp2):
    """HSDP: FSDP2 inside a node, copies across nodes.

    Weights are gathered over the fast links of a node only; between nodes goes one reduction of each device's share of the
    gradients. Needs the states to fit one node.
    """

    name = "hsdp"
    strategy = "hsdp"
    evidence = (
        Published(
            "https://arxiv.org/abs/2304.11277", "hybrid sharding: shard in the node, replicate across: less traffic"
        ),
    )

    def obstacle(self, case):
        if case.nodes == 1:
            return explain_one_device(case) or "there is one node: nothing to copy it to"
        return needs_cuda(case) or (
            None if self.layouts(case) else "the global batch cannot be divided over whole nodes"
        )

    def layouts(self, case):
        return list_sharded_in_node(case, "hsdp")
