"""Of unequal boards, the kind that does the work best."""

from __future__ import annotations

from generator.case.case import Case
from generator.case.devices import group_equal_accelerators, make_case
from generator.case.workload import Workload
from generator.cost.of_case import build_cost_model
from generator.decide.search import find_best
from generator.decide.space import open_space
from generator.model import ModelSpec
from hwdetect.types import Hardware


def choose_case(hardware: Hardware, spec: ModelSpec, workload: Workload) -> Case:
    """The work on the machine's devices; of unequal ones, on the kind that does it best."""
    cases = [make_case(hardware, used, spec, workload) for used in group_equal_accelerators(hardware)]
    if len(cases) == 1:
        return cases[0]
    return min(cases, key=best_rank)


def best_rank(case: Case) -> tuple:
    """How well a case does: whether it fits at all, whether a project can be made of it, then the best plan's rank."""
    best = find_best(open_space(case, build_cost_model(case)))
    return (best is None, case.explain_unemitted() is not None, best.key if best else ())
