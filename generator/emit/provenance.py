"""Which technique set each emitted keyword and variable."""

from __future__ import annotations

from dataclasses import fields, replace

from generator.case.case import Case
from generator.decide.plan import Plan
from generator.techniques.base import Technique
from generator.techniques.edits import Edits


def trace_edits(plan: Plan) -> list[dict]:
    """Every emitted keyword and variable, and the axis whose technique set it."""
    return [
        {"name": name, "code": code, "why": why, "place": place, "axis": technique.axis}
        for technique in plan.best.members
        for place, name, code, why in list_keyed_edits(technique, replace(plan.case, layout=plan.best.layout))
    ]


def list_keyed_edits(technique: Technique, case: Case) -> list[tuple[str, str, str, str]]:
    written = technique.edits(case)
    infer = case.workload.mode == "infer"
    found = []
    for place in (f.name for f in fields(Edits)):
        if place in ("environment", "deepspeed", "accelerate"):
            found += [(place, name, str(value), "") for name, value in getattr(written, place)]
        elif place.endswith("arguments") and place.startswith("infer_") == infer:
            found += [(place, a.name, a.code, a.why) for a in getattr(written, place)]
    return found
