from generator.case.case import Case
from generator.case.layout import Layout
from generator.techniques.base import Published, Technique
from generator.techniques.layouts import explain_one_device, explain_uneven, list_sharded


class Spmd(Technique):
    """SPMD of PyTorch/XLA: weights, gradients and optimizer states are divided over the devices by marks on tensors.

    What it does: one process of a host traces the whole batch; XLA divides the graph by where weights and rows lie, and adds the
    gathers and sums.
    When it loses: nothing else divides a model there that was run.
    Known problems: what a mark does not name, XLA decides; a saved model is gathered on the host.
    """

    axis = "parallelism"
    name = "spmd"
    evidence = (
        Published(
            "https://docs.pytorch.org/xla/release/r2.9/perf/spmd_basic.html",
            "GSPMD: the partitioner divides a single-device program by sharding hints",
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        return (
            explain_one_device(case)
            or case.explain_missing("sharding-marks")
            or explain_uneven(case, self.layouts(case))
        )

    def explain_unemitted(self, case: Case) -> str | None:
        several = "a slice of several hosts has a process on each, and that was not run: give one host's, as tpu-v5e-8"
        return several if case.nodes > 1 else None

    def layouts(self, case: Case) -> tuple[Layout, ...]:
        return list_sharded(case, "spmd")
