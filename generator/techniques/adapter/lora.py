from collections.abc import Mapping
from typing import Any

from generator.case.case import Case
from generator.techniques.base import Published, Technique


class PlainAdapter(Technique):
    """Low-rank adapters as in the LoRA paper, scaled by alpha / rank.

    What it does: adds the product of two small matrices to the output of a frozen layer.
    When it loses: at high ranks, where alpha / rank makes its updates small.
    Known problems: none that we know of.
    """

    axis = "adapter"
    name = "lora"
    evidence = (
        Published("https://arxiv.org/abs/2106.09685", "GPT-3 175B: 1.2 TB of VRAM becomes 350 GB, quality on par"),
    )

    def obstacle(self, case: Case) -> str | None:
        return explain_other_adapter(case, self.name)

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"adapter": "lora"}


def explain_other_adapter(case: Case, name: str) -> str | None:
    """Why a form of adapter is not what the user chose, or ``None``."""
    if case.workload.train == "full":
        return "you asked for --train full: nothing is adapted"
    chosen = case.workload.adapter
    return None if chosen == name else f"the form of the adapters is yours to choose, and it is --adapter {chosen}"
