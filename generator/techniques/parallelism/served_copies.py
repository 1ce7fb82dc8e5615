from typing import ClassVar

from generator.case.case import Case
from generator.case.layout import Layout
from generator.techniques.base import Published, Technique
from generator.techniques.parallelism.served import divides_served_heads, list_powers
from generator.techniques.traits import Trait


class ServedCopies(Technique):
    """Copies of the model on several nodes behind one address: the first node hands requests out to all of them.

    What it does: serves more requests than one node can; a copy lies within a node, so that no layer waits for the network.
    When it loses: one address and one process that tokenizes for all nodes; a node that is lost ends the others' server too.
    Known problems: vLLM shares the experts of a mixture among all copies, which would then talk between nodes in every layer.
    """

    axis = "parallelism"
    name = "served-copies"
    modes = ("infer",)
    needs: ClassVar = {
        Trait.COPIES_OVER_NODES: "the server of {other} hands nothing out to other nodes; that of {able} does"
    }
    evidence = (
        Published(
            "https://docs.vllm.ai/en/latest/serving/data_parallel_deployment/",
            "internal load balancing: one API endpoint, copies of the model on further nodes with --headless",
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        if case.nodes == 1:
            return "there is one node"
        if case.model.experts:
            return "vLLM shares a mixture's experts among all copies, and each layer would wait for the network"
        if self.layouts(case):
            return None
        return f"{case.workload.concurrency} request(s) at a time are fewer than copies would be"

    def layouts(self, case: Case) -> tuple[Layout, ...]:
        """All devices of each node."""
        each = case.devices_per_node
        return tuple(
            Layout(nodes=nodes, per_node=each, tp=tp, replicate=nodes * each // tp)
            for tp in list_powers(each)
            if each % tp == 0 and divides_served_heads(case, tp)
            for nodes in list_powers(case.nodes)[1:]
            if nodes * each // tp <= case.workload.concurrency
        )
