"""A plan, and for a training plan how its result is served on the same machine."""

from __future__ import annotations

from dataclasses import replace

from generator.case.case import Case
from generator.case.workload import Workload
from generator.cost.of_case import build_cost_model
from generator.decide.ladder import build_ladder
from generator.decide.plan import Plan, add_serving, decide
from generator.errors import NothingFits


def plan_case(case: Case) -> Plan:
    """Decide for the asked mode; a training plan also decides how infer.py serves the result."""
    try:
        plan = decide(case, build_cost_model(case))
    except NothingFits as error:
        error.ladder = build_ladder(case)
        raise
    if case.workload.mode == "infer":
        return plan
    serve = replace(case, workload=derive_serving_workload(case.workload))
    try:
        return add_serving(plan, decide(serve, build_cost_model(serve)))
    except NothingFits:
        return plan


def derive_serving_workload(workload: Workload) -> Workload:
    """infer.py answers one prompt at a time; a QLoRA adapter is served on the 4-bit base that it was trained on."""
    axes_of_both = ("precision", "attention", "cpu-threads")
    pins = tuple(p for p in workload.pins if p[0] in axes_of_both)
    if workload.train == "qlora":
        pins = (*pins, ("quantization", "bnb-nf4"))
    return replace(workload, mode="infer", concurrency=1, pins=pins, allow=(), steps=None, max_steps=None)
