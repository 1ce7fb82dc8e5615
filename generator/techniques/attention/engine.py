from collections.abc import Mapping
from typing import Any, ClassVar

from generator.case.case import Case
from generator.techniques.base import Published, Technique
from generator.techniques.traits import Trait


class EngineAttention(Technique):
    """The serving engine's own attention kernels.

    What it does: leaves the choice to the engine, whose kernels read its cache as it keeps it.
    When it loses: never where there is such an engine: its code of the model takes no other.
    Known problems: which kernel it takes is the engine's business, and changes with its version.
    """

    axis = "attention"
    name = "engine"
    modes = ("infer",)
    needs: ClassVar = {Trait.OWN_KERNELS: "{other} has no attention kernels of its own; only {able} do"}
    evidence = (
        Published(
            "https://arxiv.org/abs/2309.06180", "attention over paged keys and values needs kernels that know the pages"
        ),
    )

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"attention": "flash"}
