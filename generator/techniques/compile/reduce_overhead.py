from collections.abc import Mapping
from typing import Any, ClassVar

from generator.case.case import Case
from generator.techniques.base import Published
from generator.techniques.compile.default import Default
from generator.techniques.edits import Edits, make_argument
from generator.techniques.traits import Trait


class ReduceOverhead(Default):
    """torch.compile that captures each pass as a CUDA graph and replays it (mode reduce-overhead).

    What it does: as default; the host issues one launch a pass, so that small models do not wait for it.
    When it loses: in models whose operators take longer than their launch: nothing is gained, and memory is.
    Known problems: every length is captured anew; gradients of one pass are overwritten by the next, so that it cannot
    accumulate; the graphs' pool of memory is not in the estimate; never run on a GPU by perfgen's authors.
    """

    name = "reduce-overhead"
    mode: ClassVar[str] = "reduce-overhead"
    adds = 2
    accumulates = False
    provides = frozenset({Trait.CAPTURED_GRAPH})
    request_only = "its pool of memory is not in the estimate, and it was not run on a GPU"
    evidence = (
        Published(
            "https://huggingface.co/docs/transformers/en/torch_compile",
            "reduce-overhead: less Python and CPU overhead by CUDA graphs, at the cost of some extra memory",
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        return case.explain_missing("graphs") or super().obstacle(case)

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"compile": self.mode}

    def edits(self, case: Case) -> Edits:
        reason = "each pass is captured once as a CUDA graph, and replayed"
        mode = make_argument("torch_compile_mode", self.mode, reason)
        return Edits(training_arguments=(*super().edits(case).training_arguments, mode))
