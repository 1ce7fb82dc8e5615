from collections.abc import Mapping
from typing import Any, ClassVar

from generator.case.case import Case
from generator.techniques.base import Published, Technique
from generator.techniques.cache.dynamic import explain_no_generation
from generator.techniques.traits import Trait


class EngineCache(Technique):
    """The serving engine's own cache: in pages, or in the place of fixed size that its graph has.

    What it does: leaves keys and values to the engine, within the limits that the plan computes for its flags.
    When it loses: never where there is such an engine: its code of the model takes no other.
    Known problems: none that we know of.
    """

    axis = "cache"
    name = "engine"
    modes = ("infer",)
    needs: ClassVar = {Trait.OWN_KERNELS: "{other} keeps no cache of its own; only {able} do"}
    evidence = (Published("https://arxiv.org/abs/2309.06180", "pages waste under 4 % of the cache"),)

    def obstacle(self, case: Case) -> str | None:
        return explain_no_generation(case)

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"cache": "static"}
