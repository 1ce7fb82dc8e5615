from generator.case.case import Case
from generator.case.layout import Layout
from generator.techniques.base import Published
from generator.techniques.layouts import explain_one_device, list_sharded_in_node
from generator.techniques.sharding import Fsdp, explain_unsharded
from generator.techniques.traits import Trait


class Hsdp(Fsdp):
    """HSDP: FSDP2 inside a node, copies across nodes.

    What it does: gathers weights over the fast links of a node only; between nodes goes one reduction of each device's
    share of the gradients.
    When it loses: where the states do not fit one node, and where the network is as fast as the links inside.
    Known problems: as fsdp2; it needs two nodes or more.
    """

    name = "hsdp"
    strategy = "hsdp"
    provides = frozenset({Trait.FSDP_RECOMPUTATION})
    evidence = (
        Published(
            "https://arxiv.org/abs/2304.11277", "hybrid sharding: shard in the node, replicate across: less traffic"
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        if case.nodes == 1:
            return explain_one_device(case) or "there is one node: nothing to copy it to"
        return explain_unsharded(case) or (
            None if self.layouts(case) else "the global batch cannot be divided over whole nodes"
        )

    def layouts(self, case: Case) -> tuple[Layout, ...]:
        return list_sharded_in_node(case, self.strategy)
