"""How often a project saves, and what that costs."""

from __future__ import annotations

from generator.case.saving import choose_save_steps, read_disk_rate
from generator.cost.checkpoint import count_checkpoint_bytes
from generator.cost.of_case import build_cost_model
from generator.decide.plan import Plan
from generator.emit.plan_document import SavingRecord
from generator.techniques.launch import find_grace_seconds


def describe_saving(plan: Plan, save_steps: int | None = None) -> SavingRecord:
    """The interval that config.yaml gets, with the figures behind it. ``save_steps``: where something else decides it."""
    case, step_seconds = plan.case, plan.best.estimate.step_seconds
    checkpoint_bytes = count_checkpoint_bytes(build_cost_model(case).shape, plan.best.execution)
    rate, basis = read_disk_rate(case.hardware)
    save_seconds = checkpoint_bytes / rate
    save_steps = save_steps or choose_save_steps(step_seconds, case.workload.steps, save_seconds)
    training_seconds = save_steps * step_seconds
    return SavingRecord(
        save_steps=save_steps,
        interval_seconds=round(training_seconds, 1),
        checkpoint_gib=round(checkpoint_bytes / 2**30, 3),
        disk_bytes_per_s=rate,
        disk_basis=basis,
        save_seconds=round(save_seconds, 2),
        time_share=round(save_seconds / (save_seconds + training_seconds), 4),
        grace_seconds=find_grace_seconds(case),
    )
