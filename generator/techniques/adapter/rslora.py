from collections.abc import Mapping
from typing import Any

from generator.case.case import Case
from generator.techniques.adapter.lora import explain_other_adapter
from generator.techniques.base import Published, Technique


class RankStabilized(Technique):
    """Low-rank adapters scaled by alpha / sqrt(rank) (rsLoRA).

    What it does: LoRA whose updates stay as large as the rank grows, at the same cost.
    When it loses: at low ranks, where it is LoRA with another alpha.
    Known problems: an alpha chosen for LoRA is too large here: unless config.yaml has another, it is PEFT's own, 8.
    """

    axis = "adapter"
    name = "rslora"
    evidence = (
        Published(
            "https://arxiv.org/abs/2312.03732",
            "with alpha / sqrt(rank) higher ranks learn better, with alpha / rank not",
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        return explain_other_adapter(case, self.name)

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"adapter": "lora"}
