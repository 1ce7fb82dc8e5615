from collections.abc import Mapping
from typing import Any, ClassVar

from generator.case.case import Case
from generator.techniques.base import Published, Technique
from generator.techniques.cache.dynamic import explain_no_generation, explain_short_memory
from generator.techniques.edits import Edits, make_argument
from generator.techniques.traits import Trait


class Static(Technique):
    """Room for all keys and values from the start.

    What it does: gives keys and values fixed shapes, so that generate compiles the decoding step by itself; in a server, a
    row for each answer, so that all of them are computed in one pass.
    When it loses: without compilation, and for short answers: it holds, and generate attends to, the longest sequence.
    Known problems: compiles again when the batch or the maximum length grows.
    """

    axis = "cache"
    name = "static"
    modes = ("infer",)
    provides = frozenset({Trait.STATIC_CACHE, Trait.TRANSFORMERS_MODEL})
    excludes: ClassVar = {Trait.EAGER_STEPS: "without compilation a static cache only attends to empty positions"}
    evidence = (
        Published("https://huggingface.co/docs/transformers/en/llm_optims", "static cache and torch.compile: up to 4x"),
    )

    def obstacle(self, case: Case) -> str | None:
        if case.workload.by_row and explain_no_generation(case) is None:
            return "batch.py generates with the model's own settings"
        if case.workload.serves and (why := explain_short_memory(case)):
            return f"{why}, which rows of keys and values do not hold"
        return explain_no_generation(case)

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"cache": "static"}

    def edits(self, case: Case) -> Edits:
        if case.workload.serves:  # the server's own, by its config.yaml
            return Edits()
        return Edits(
            infer_generate_arguments=(
                make_argument("cache_implementation", "static", "generate compiles the decoding step"),
            )
        )
