"""How often a project saves, and what that costs."""

from __future__ import annotations

from dataclasses import replace

from generator.case.saving import choose_save_steps, compute_save_seconds, read_disk_rate
from generator.cost.checkpoint import count_checkpoint_bytes
from generator.cost.of_case import build_cost_model
from generator.decide.plan import Plan
from generator.emit.plan_document import SavingRecord
from generator.techniques.launch import count_writing_nodes, find_grace_seconds

BY_TIME = "an interruption shall cost 20 to 30 minutes, or up to two hours where saves would else take more than 5 % of the time"
BY_EVALUATION = "where the run is evaluated, so that the best model can be kept"


def describe_saving(plan: Plan, eval_steps: int | None = None) -> SavingRecord:
    """The interval that config.yaml gets, with the figures behind it. ``eval_steps``: where the best model is to be kept."""
    case, step_seconds = replace(plan.case, layout=plan.best.layout), plan.best.estimate.step_seconds
    checkpoint_bytes = count_checkpoint_bytes(build_cost_model(case).shape, plan.best.execution)
    rate, basis = read_disk_rate(case.hardware)
    save_seconds = compute_save_seconds(checkpoint_bytes, case.hardware, count_writing_nodes(case.layout))
    by_time = choose_save_steps(step_seconds, case.workload.steps, save_seconds)
    save_steps = eval_steps or by_time
    training_seconds = save_steps * step_seconds
    return SavingRecord(
        save_steps=save_steps,
        why=BY_TIME if save_steps == by_time else BY_EVALUATION,
        interval_seconds=round(training_seconds, 1),
        checkpoint_gib=round(checkpoint_bytes / 2**30, 3),
        disk_bytes_per_s=rate,
        disk_basis=basis,
        save_seconds=round(save_seconds, 2),
        time_share=round(save_seconds / (save_seconds + training_seconds), 4),
        grace_seconds=find_grace_seconds(case),
    )
