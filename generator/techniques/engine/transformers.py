from collections.abc import Mapping
from typing import Any

from generator.case.case import Case
from generator.techniques.engines import Engine, serve_many
from generator.techniques.traits import Trait


class Transformers(Engine):
    """Transformers runs the model, as it was trained.

    What it does: every model, format and technique of Transformers; `generate` for one request, continuous batching for
    several.
    When it loses: against engines with fused kernels and quantized products, by two to six times.
    Known problems: on a CPU nothing compiles the decoding step unless it is asked to.
    """

    name = "transformers"
    baseline = True
    role = "serve-transformers"
    leaf = "transformers"
    provides = frozenset({Trait.CHECKS_PROPOSALS})
    checkpoints = frozenset({"bitsandbytes"})
    """what the tested stack reads: for the others it would take packages and kernels that are not in it (gptqmodel,
    compressed-tensors, the kernels hub), or unpack them"""

    def obstacle(self, case: Case) -> str | None:
        return self.explain_model(case) if case.workload.serves else None

    def effects(self, case: Case) -> Mapping[str, Any]:
        return serve_many(case)
