"""The variables that no technique sets alone: they follow from the plan as a whole."""

from __future__ import annotations

from dataclasses import replace

from generator.decide.plan import Plan
from generator.techniques.edits import Edits
from generator.techniques.traits import Trait

ALLOCATOR, EXPANDABLE = "PYTORCH_ALLOC_CONF", "expandable_segments:True"
"""torch 2.13's name (c10/core/AllocatorConfig.h); the older PYTORCH_CUDA_ALLOC_CONF is read first where both are set."""
TIGHT_SHARE = 0.9
"""of the memory that may be used: above it a run has no room for the holes that blocks of other sizes leave"""


def complete_environment(plan: Plan, edits: Edits) -> Edits:
    """One value a variable: what techniques ask of the allocator, and what the plan does."""
    edits = replace(edits, environment=(*plan.case.vendor.environment, *edits.environment))
    settings = [value for name, value in edits.environment if name == ALLOCATOR]
    settings += [EXPANDABLE] if needs_expandable_segments(plan) else []
    others = tuple(item for item in edits.environment if item[0] != ALLOCATOR)
    return replace(edits, environment=(*others, *([(ALLOCATOR, ",".join(settings))] if settings else [])))


def needs_expandable_segments(plan: Plan) -> bool:
    """Whether batches differ in length or the plan fills the memory: fixed segments would then end in fragments."""
    case, estimate = plan.case, plan.best.estimate
    if case.explain_missing("growing-segments") or case.workload.mode != "train":
        return False
    varies = any(Trait.VARYING_SHAPES in technique.traits(case) for technique in plan.best.members)
    return varies or estimate.peak_memory_gib > TIGHT_SHARE * estimate.limit_gib
