from collections.abc import Mapping
from typing import Any

from generator.case.case import Case
from generator.techniques.base import Published
from generator.techniques.compile.default import Default
from generator.techniques.edits import Edits
from generator.techniques.traits import Trait

COLD_SECONDS = {"cpu": 15.0, "gpu": 12.0}
"""First step with compiled layers. CPU: 6 of 7 s, a Llama of 6 layers and 1M parameters, one compilation (measured 2026-11, cold), and
as much again for wider layers. GPU: a fifth of a full graph's, the least of what the Accelerate guide measured."""


class Regional(Default):
    """torch.compile of each layer by itself (regional compilation): equal layers share one compilation.

    What it does: fuses what is inside of a layer; the loss, whatever computes it, and the embedding stay as they are.
    When it loses: against a full graph, in models of few layers: nothing is fused between them.
    Known problems: as default; lengths that differ compile twice, once more for any length.
    """

    name = "regional"
    adds = 1
    provides = frozenset({Trait.COMPILED_LAYERS})
    evidence = (
        Published(
            "https://huggingface.co/docs/accelerate/en/usage_guides/compilation",
            "regional compilation: as fast as a full graph, 5 to 9 times shorter to compile",
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        asked = (self.axis, self.name) in case.workload.pins or {self.name, self.id} & set(case.workload.allow)
        if case.workload.task != "causal-lm" and not asked:  # plain text is cut into sequences of one length
            why = "examples differ in length, and no run with compiled layers of any length was timed"
            return f"{why}; only on request: --allow {self.id}"
        return super().obstacle(case)

    def traits(self, case: Case) -> frozenset[Trait]:
        """No graph of the model: its forward pass can be what it likes."""
        return self.provides - {Trait.COMPILED_GRAPH}

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"compile": "regional"}

    def once_seconds(self, case: Case) -> float:
        return COLD_SECONDS["cpu" if case.on_cpu else "gpu"]

    def edits(self, case: Case) -> Edits:
        return Edits(
            imports=("from compiled_layers import compile_layers",),
            fragments=("compiled_layers",),
            after_model=("compile_layers(model)",),
        )
