from collections.abc import Mapping
from typing import Any

from generator.case.case import Case
from generator.techniques.base import Published, Technique
from generator.techniques.edits import Edits, make_argument
from generator.techniques.traits import Trait


class Eager(Technique):
    """Attention as plain matrix products.

    What it does: computes scores, softmax and weighted sum one after the other, and can return the attention weights.
    When it loses: nearly always. It holds heads x tokens x tokens scores, which grow with the square of the sequence.
    Known problems: at 16 thousand tokens and 40 heads the scores of one layer alone take 20 GB in 16 bits.
    """

    axis = "attention"
    name = "eager"
    modes = ("train", "infer")
    provides = frozenset({Trait.SCORE_MATRIX, Trait.TRANSFORMERS_MODEL})
    evidence = (
        Published(
            "https://huggingface.co/docs/transformers/en/attention_interface",
            "the plain implementation: the one that returns attention weights",
        ),
    )

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"attention": "eager"}

    def edits(self, case: Case) -> Edits:
        return make_attention_edits("eager")


def make_attention_edits(implementation: str, why: str = "", requirements: tuple[str, ...] = ()) -> Edits:
    """``implementation`` is the value of ``attn_implementation``, in training and inference."""
    chosen = (make_argument("attn_implementation", implementation, why),)
    return Edits(model_arguments=chosen, infer_model_arguments=chosen, requirements=requirements)
