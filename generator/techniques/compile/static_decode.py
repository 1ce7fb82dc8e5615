from collections.abc import Mapping
from typing import Any, ClassVar

from generator.case.case import Case
from generator.techniques.base import Published, Technique
from generator.techniques.traits import Trait


class StaticDecode(Technique):
    """Compile the decoding step (generate does it by itself on a GPU once the cache is static; the server as it starts).

    What it does: one graph for every token, so that the time to launch its kernels disappears.
    When it loses: for few and short answers, which do not earn the compilation back.
    Known problems: compiles again when the batch or the maximum length grows; quantizers that are not compileable and
    weights on CPU or disk switch it off.
    """

    axis = "compile"
    name = "static-decode"
    compiles = True
    modes = ("infer",)
    provides = frozenset({Trait.TRANSFORMERS_MODEL})
    needs: ClassVar = {Trait.STATIC_CACHE: "only a static cache has the fixed shapes that the compiled step needs"}
    evidence = (
        Published("https://huggingface.co/docs/transformers/en/llm_optims", "static cache and torch.compile: up to 4x"),
    )

    def obstacle(self, case: Case) -> str | None:
        if case.portable:
            return "the machine is not known"
        if case.workload.serves and case.workload.concurrency > 1:
            return "the number of answers in a step changes, and each would be another graph: one at a time is compiled"
        if case.workload.by_row:
            return "batch.py computes rows of any size: each would be compiled anew"
        return case.explain_missing("compiled-decode")

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"compile": "reduce-overhead"}
