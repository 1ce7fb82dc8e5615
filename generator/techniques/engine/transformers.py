from collections.abc import Mapping
from typing import Any

from generator.case.case import Case
from generator.techniques.edits import Edits
from generator.techniques.engines import Engine, serve_many
from generator.techniques.traits import Trait

TOLD_APART = 0.13
"""The median error of a predicted speed of answers is 8.7 % (333 published rows, benchmarks/results/validation.json, inference), of
the ratio of two such the root of 2 times that: nearer, predictions do not say which of two engines is the faster."""
DIRECT_TYPES = frozenset(["llama", "mistral", "qwen2", "qwen3"])
"""whose layers direct_step.py computes: Llama was run, its relatives are built of the same modules"""


class Transformers(Engine):
    """Transformers runs the model, as it was trained.

    What it does: every model, format and technique of Transformers; `generate` for one request, continuous batching for
    several.
    When it loses: against engines with fused kernels and quantized products, by two to six times.
    Known problems: on a CPU nothing compiles the decoding step unless it is asked to; of a few types the engine computes it itself.
    """

    name = "transformers"
    baseline = True
    role = "serve-transformers"
    leaf = "transformers"
    imports = ("decoding", "direct_step", "engine_thread", "scheduler", "slots")
    provides = frozenset({Trait.CHECKS_PROPOSALS, Trait.RUNS_DRAFT_MODEL})
    checkpoints = frozenset({"bitsandbytes"})
    """what the tested stack reads: for the others it would take packages and kernels that are not in it (gptqmodel,
    compressed-tensors, the kernels hub), or unpack them"""

    adapters = frozenset({"lora", "rslora", "dora", "patterned", "biased", "of parameters"})

    def obstacle(self, case: Case) -> str | None:
        return self.explain_model(case) if case.workload.serves else None

    def least_gain(self, case: Case) -> float:
        """Where a serving engine is as fast for what was planned, it is so for more: its cache is paged, requests join as they come."""
        return TOLD_APART if case.workload.serves and not case.on_cpu else 0.0

    def effects(self, case: Case) -> Mapping[str, Any]:
        direct = case.workload.serves and case.on_cpu and case.model.model_type in DIRECT_TYPES
        return serve_many(case) | ({"direct_step": True} if direct and not case.model.quantization else {})

    def edits(self, case: Case) -> Edits:
        if case.workload.served_adapter is None:
            return Edits()
        return Edits(
            fragments=("served_adapter",),
            infer_imports=("from served_adapter import add_adapter",),
            infer_after_model=('add_adapter(model, find_source(config, "adapter"))',),
            requirements=("peft",),
        )
