from collections.abc import Mapping
from typing import Any

from generator.case.case import Case
from generator.techniques.base import Technique
from generator.techniques.traits import Trait


class Dynamic(Technique):
    """Keys and values grow by one token a step.

    What it does: holds the keys and values of the tokens that there are, no more.
    When it loses: against a static cache and compiled decoding on a GPU, where launching kernels takes longer than they
    run.
    Known problems: its shapes change with every token, so the decoding step cannot be one compiled graph.
    """

    axis = "cache"
    name = "dynamic"
    baseline = True
    modes = ("infer",)
    provides = frozenset({Trait.TRANSFORMERS_MODEL})

    def obstacle(self, case: Case) -> str | None:
        return explain_no_generation(case)

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"cache": "dynamic"}


def explain_no_generation(case: Case) -> str | None:
    """Why no tokens are generated, or ``None``."""
    return "a classifier generates nothing" if case.workload.task == "text-classification" else None
