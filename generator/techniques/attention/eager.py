from generator.edits import Edits, argument
from generator.technique import Technique


class Eager(Technique):
    """Attention as plain matrix products.

    Keeps the whole score matrix, heads x tokens x tokens. Needed only to look at attention weights.
    """

    axis = "attention"
    name = "eager"
    baseline = True
    modes = ("train", "infer")

    def effects(self, case):
        return {"attention": "eager"}

    def edits(self, case):
        return attention_edits("eager")


def attention_edits(implementation: str, why: str = "", **more) -> Edits:
    chosen = (argument("attn_implementation", implementation, why),)
    return Edits(model_arguments=chosen, infer_model_arguments=chosen, **more)
