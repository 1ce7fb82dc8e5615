from generator.techniques.base import Published, Technique
from generator.techniques.edits import Edits, argument


class Packed(Technique):
    """Fill every sequence to its full length with several texts.

    No padding and one shape for every batch. For plain text it is what pre-training does. For conversations, attention would
    see the neighbours in the same sequence unless they are kept apart, which only a variable-length kernel does cheaply.
    """

    axis = "packing"
    name = "packed"
    evidence = (
        Published(
            "https://arxiv.org/abs/2107.02027", "packing halves BERT pre-training time: half of the tokens were padding"
        ),
    )

    def obstacle(self, case):
        if case.workload.task == "text-classification":
            return "every text has its own label"
        if not case.workload.packing:
            return "you asked for --no-packing"
        return None

    def clash(self, other, case):
        if case.workload.task == "sft" and other.axis == "attention" and other.name != "flash-attention":
            return f"{other.name} would join the rows into one and mask it densely; only flash-attention packs without that"
        return None

    def effects(self, case):
        return {"computed_share": 1.0, "padding_share": 0.0, "padding_free": True}

    def edits(self, case):
        if case.workload.task == "sft":
            return Edits(
                training_arguments=(argument("packing", True, "no padding: several conversations a sequence"),)
            )
        return Edits()
