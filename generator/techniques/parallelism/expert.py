from dataclasses import replace
from typing import ClassVar

from generator.case.case import Case
from generator.case.layout import Layout
from generator.techniques.base import Published
from generator.techniques.layouts import list_split
from generator.techniques.looped import Looped
from generator.techniques.parallelism.tensor import divides_model
from generator.techniques.traits import Trait

MIXTURE_TYPES = frozenset({"deepseek_v3", "mixtral", "qwen3_moe"})
"""Model types whose experts were divided so on several processes (tests/test_loop_projects.py)."""


class Expert(Looped):
    """Expert parallelism inside tensor parallelism: whole experts on one device each, all else divided by matrices.

    What it does: the devices of a node share their rows; each runs its experts on the tokens that are sent to them.
    When it loses: where the experts fit, and over slow links: every layer sends tokens out and back.
    Known problems: its size must divide the experts and the heads; the Trainer cannot save the optimizer of such a
    model; run on CPUs over gloo, never on GPUs.
    """

    name = "expert"
    faults: ClassVar = {"llama4_text": "Transformers 5.23 has no plan for its experts"}
    model_types: ClassVar = MIXTURE_TYPES
    provides = frozenset({Trait.DTENSOR})
    evidence = (
        Published(
            "https://huggingface.co/docs/transformers/en/expert_parallelism",
            "Qwen3-30B-A3B on 8 x H100, 2048 tokens, 8 to 2 devices that share their rows: 3485 to 2830 tokens/s a GPU",
        ),
    )

    def explain_model(self, case: Case) -> str | None:
        return None if case.model.experts else "the model has no experts"

    def uneven(self, case: Case) -> str:
        return f"{case.model.experts} experts, or the heads, cannot be divided evenly"

    def layouts(self, case: Case) -> tuple[Layout, ...]:
        divided = list_split(case, "none", tp=True)
        even = (x for x in divided if x.tp > 1 and x.dp == 1 and divides_model(case, x.tp))
        return tuple(replace(x, ep=x.tp) for x in even if case.model.experts % x.tp == 0)
