from collections.abc import Mapping
from typing import Any

from generator.case.case import Case
from generator.techniques.base import Published, Technique
from generator.techniques.edits import Edits, make_argument
from generator.techniques.traits import EXCLUDED_BY_TRAIT, Trait

COLD_SECONDS = {"cpu": 49.0, "gpu": 60.0}
"""First step of a compiled model. CPU: 44 to 49 s cold and 10 s with a warm cache, 87M Llama on two cores (measured 2026-11-22).
GPU: 30 to 60 s stated by the Accelerate guide for a full graph (docs "usage_guides/compilation"), the slow end."""


class Default(Technique):
    """torch.compile with Inductor: fuse the pointwise operators of the whole step.

    What it does: one graph for forward and backward pass, whose small operators become few kernels.
    When it loses: in runs that are short against its compilation (a minute on a GPU), and before Ampere.
    Known problems: every new shape compiles again; quantized weights and hooks on modules break the graph.
    """

    axis = "compile"
    name = "default"
    compiles = True
    evidence = (
        Published(
            "https://huggingface.co/docs/transformers/en/main_classes/trainer#transformers.TrainingArguments",
            "torch_compile: 20 to 50 % faster on Ampere and later",
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        if case.portable:
            return "the machine is not known: it may lack a compiler, and older GPUs gain nothing"
        if why := case.explain_missing("compile"):
            return why
        if case.workload.train == "qlora":  # asked for by --train: an obstacle says so sooner than a conflict
            return EXCLUDED_BY_TRAIT[Trait.COMPILED_GRAPH][Trait.QUANTIZED_BASE]
        return None

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"compile": "default"}

    def once_seconds(self, case: Case) -> float:
        return COLD_SECONDS["cpu" if case.on_cpu else "gpu"]

    def edits(self, case: Case) -> Edits:
        return Edits(
            training_arguments=(make_argument("torch_compile", True, "shapes are fixed; the first step compiles"),)
        )
