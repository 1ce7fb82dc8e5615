"""Which technique set each emitted keyword and variable."""

from __future__ import annotations

from dataclasses import fields

from generator.decide.plan import Plan
from generator.techniques.edits import Edits


def trace_edits(plan: Plan) -> list[dict]:
    """Every emitted keyword and variable, and the axis whose technique set it."""
    return [
        {"name": name, "code": code, "why": why, "place": place, "axis": technique.axis}
        for technique, edits in plan.written
        for place, name, code, why in list_keyed_edits(edits, plan.case.workload.mode)
    ]


def list_keyed_edits(edits: Edits, mode: str) -> list[tuple[str, str, str, str]]:
    keyed = []
    for place in (f.name for f in fields(Edits)):
        if place in ("environment", "deepspeed", "accelerate"):
            keyed += [(place, name, str(value), "") for name, value in getattr(edits, place)]
        elif place.endswith("arguments") and place.startswith("infer_") == (mode == "infer"):
            keyed += [(place, a.name, a.code, a.why) for a in getattr(edits, place)]
    return keyed
