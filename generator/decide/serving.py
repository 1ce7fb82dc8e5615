"""A plan, and for a training plan how its result is served on the same machine."""

from __future__ import annotations

from dataclasses import replace

from generator.case.case import Case
from generator.case.stacks import load_stack
from generator.case.workload import DEFAULT_GOAL, Workload
from generator.cost.of_case import build_cost_model
from generator.decide.notes import Note
from generator.decide.plan import Plan, decide, plan_space
from generator.decide.space import Space, open_space
from generator.techniques.base import Technique, find_technique
from generator.techniques.engines import Engine

AXES_OF_BOTH = ("precision", "attention", "cpu-threads")
"""Where a pin for training says how the user wants the model to be computed, whatever is done with it."""
Pins = tuple[tuple[str, str], ...]


def plan_case(case: Case) -> Plan:
    """Decide for the asked mode; a training plan also decides how infer.py serves the result. Raises ``NothingFits``."""
    plan = decide(case, build_cost_model(case))
    if case.workload.mode == "infer":
        return use_engine_stack(plan)
    free = replace(case, workload=derive_serving_workload(case.workload))
    pins, notes = keep_serving_pins(free, case.workload)
    serving = replace(free, workload=replace(free.workload, pins=pins))
    served = plan_space(open_space(serving, build_cost_model(serving)))
    return replace(plan, serving=served, notes=(*plan.notes, *notes))


def use_engine_stack(plan: Plan) -> Plan:
    """The plan with the environment of its engine."""
    case = plan.case
    roles = [t.role for t in plan.best.members if isinstance(t, Engine)]
    if not case.workload.task_facts.writes or roles == [case.stack.role]:
        return plan
    (role,) = roles
    build = case.vendor.choose_build(role, case.device, case.hardware.software.driver)
    return replace(plan, case=replace(case, stack=load_stack(role, build, case.vendor.missing)))


def derive_serving_workload(workload: Workload) -> Workload:
    """infer.py answers one prompt at a time, as the machine does it best: without the pins of the training plan."""
    return replace(
        workload,
        mode="infer",
        after_training=True,
        concurrency=1,
        new_tokens=workload.new_tokens if workload.task_facts.generates else 0,
        pins=(),
        allow=(),
        steps=None,
        max_steps=None,
        max_latency=None,
        optimize_for=DEFAULT_GOAL,
    )


def keep_serving_pins(serving: Case, training: Workload) -> tuple[Pins, tuple[Note, ...]]:
    """The pins of a training plan that hold for serving too, and a note on each that does not."""
    space = open_space(serving, build_cost_model(serving))
    # infer.py runs where train.py does, in its environment
    kept: list[Technique] = [t for t in space.open["engine"] if t.baseline]
    notes: list[Note] = []
    if training.train == "qlora":  # an adapter is served on the 4-bit base that it was trained on
        kept += [t for t in space.open["quantization"] if t.effects(serving).get("quant") == "nf4"]
    for axis, name in dict.fromkeys(pin for pin in training.pins if pin[0] in AXES_OF_BOTH):
        pinned = find_technique(axis, name)
        why = explain_unserved(space, pinned, kept) if pinned else None
        if why:
            notes.append(Note(kind="pins", text=f"--pin {axis}={name} holds for training, not for infer.py: {why}"))
        elif pinned:
            kept.append(pinned)
    return tuple((t.axis, t.name) for t in kept), tuple(notes)


def explain_unserved(space: Space, pinned: Technique, kept: list[Technique]) -> str | None:
    """Why a technique cannot serve beside those that are kept, or ``None``."""
    if "infer" not in pinned.modes:
        return "it is a technique of training"
    conflicts = (why for other in kept if (why := space.conflict(pinned, other)))
    return space.obstacles.get(pinned.id) or next(conflicts, None)
