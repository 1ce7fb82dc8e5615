"""Which technique set each emitted keyword, setting and variable."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields

from generator.decide.plan import Plan
from generator.emit.plan_document import EditRecord
from generator.techniques.base import Technique
from generator.techniques.edits import Argument, Edits

SETTINGS = ("environment", "deepspeed", "accelerate")
STATEMENTS = ("setup", "after_model", "after_trainer", "infer_setup", "infer_after_model")


def trace_edits(plan: Plan) -> tuple[EditRecord, ...]:
    """Every emitted keyword, setting and variable, and the axis whose technique set it."""
    infer = plan.case.workload.mode == "infer"
    return tuple(record for technique, edits in plan.written for record in list_keyed_edits(technique, edits, infer))


def list_keyed_edits(technique: Technique, edits: Edits, infer: bool) -> Iterator[EditRecord]:
    """Of a training plan those of train.py, of a plan for inference those of infer.py; what both share, of both."""
    for place in (f.name for f in fields(Edits)):
        written = getattr(edits, place)
        here = place.startswith("infer_") == infer
        for argument in list_arguments(place, written, here):
            yield EditRecord(name=argument.name, code=argument.code, why=argument.why, place=place, axis=technique.axis)


def list_arguments(place: str, written: tuple, here: bool) -> Iterator[Argument]:
    """What stands at one place, by name. ``here``: the place is in the script that the plan is for."""
    if place in SETTINGS:
        yield from (Argument(name, str(value)) for name, value in written)
    elif here and place.endswith("arguments"):
        yield from written
    elif here and place in STATEMENTS:
        yield from (keyword for statement in written for keyword in list_keywords(statement))


def list_keywords(statement: str) -> Iterator[Argument]:
    """The keywords of the calls in a statement, as in `LoraConfig(r=8)`."""
    if "=" not in statement:
        return
    for node in ast.walk(ast.parse(statement)):
        if isinstance(node, ast.Call):
            yield from (
                Argument(k.arg, ast.get_source_segment(statement, k.value) or "") for k in node.keywords if k.arg
            )
