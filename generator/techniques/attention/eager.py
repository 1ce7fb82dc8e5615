from generator.techniques.base import Published, Technique
from generator.techniques.edits import Edits, argument


class Eager(Technique):
    """Attention as plain matrix products.

    Keeps the whole score matrix, heads x tokens x tokens. Needed to look at attention weights, and where SDPA has no kernel.
    """

    axis = "attention"
    name = "eager"
    modes = ("train", "infer")
    evidence = (
        Published(
            "https://huggingface.co/docs/transformers/en/attention_interface",
            "the plain implementation: the one that returns attention weights",
        ),
    )

    def effects(self, case):
        return {"attention": "eager"}

    def edits(self, case):
        return attention_edits("eager")


def attention_edits(implementation: str, why: str = "", **more) -> Edits:
    chosen = (argument("attn_implementation", implementation, why),)
    return Edits(model_arguments=chosen, infer_model_arguments=chosen, **more)
