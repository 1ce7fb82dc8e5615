"""What preflight.py compares its measurements with."""

from __future__ import annotations

from generator.cost import constants as c
from generator.cost.comm import Group
from generator.cost.of_case import build_cost_model
from generator.decide.plan import Plan
from generator.emit.plan_document import ABSENT, PreflightConfig, SavingRecord

KEPT_CHECKPOINTS = 3
"""two are kept while one is written"""


def expect_rates(plan: Plan, saving: SavingRecord) -> PreflightConfig:
    """GB/s as the cost model has them; none on a CPU, where what gloo reaches depends on what else runs."""
    case, run = plan.case, plan.best.execution
    disk_gib = round(KEPT_CHECKPOINTS * saving.checkpoint_gib, 1)
    if case.on_cpu:
        return PreflightConfig(disk_gib=disk_gib)
    rates = build_cost_model(case).rates

    def reach(ranks: int, stride: int = 1) -> float:
        return round(Group(run, ranks, stride).bytes_per_s(rates) * c.COLLECTIVE_REALISED / 1e9, 1)

    return PreflightConfig(
        disk_gib=disk_gib,
        all_reduce_gb_per_s=reach(run.devices),
        node_gb_per_s=reach(2) if run.per_node > 1 else ABSENT,
        nodes_gb_per_s=reach(2, run.per_node) if run.nodes > 1 else ABSENT,
    )
