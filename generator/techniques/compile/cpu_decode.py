from collections.abc import Mapping
from typing import Any, ClassVar

from generator.case.case import Case
from generator.techniques.base import Published, Technique
from generator.techniques.traits import Trait

COLD_SECONDS = 360.0
"""Of two cores until the first answer, SmolLM2-135M, nothing cached; 49 with Inductor's cache (measured by this project)."""


class CpuDecode(Technique):
    """Compile the step of one answer on a CPU, where generate compiles nothing.

    What it does: one graph of fused C++ for every token, over rows of keys and values that stay where they are.
    When it loses: for servers that run for minutes: it compiles for that long at the first start, and for most of a minute at
    every other; for several answers at a time, whose products are large enough as they are.
    Known problems: a model with layers of several kinds is not compiled, and the server says so.
    """

    axis = "compile"
    name = "cpu-decode"
    compiles = True
    modes = ("infer",)
    provides = frozenset({Trait.TRANSFORMERS_MODEL})
    needs: ClassVar = {Trait.STATIC_CACHE: "rows that are allocated once have the fixed places which one graph needs"}
    request_only = "the first start compiles for minutes, which only a server earns back that runs for hours"
    evidence = (
        Published(
            "https://docs.pytorch.org/tutorials/intermediate/inductor_debug_cpu.html",
            "Inductor's C++ backend fuses the operators of a model on a CPU",
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        if case.portable:
            return "the machine is not known"
        if not case.on_cpu:
            return "generate compiles by itself on accelerators"
        if not case.workload.serves:
            return "generate compiles on accelerators only, and one short script would not earn it back"
        if case.workload.concurrency > 1:
            return "of several answers at a time the products are large enough as they are"
        return None

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"compile": "default"}

    def once_seconds(self, case: Case) -> float:
        return COLD_SECONDS
