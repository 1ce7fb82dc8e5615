from generator.techniques.base import Published, Technique
from generator.techniques.edits import Edits, argument
from generator.techniques.packing.padded import lengths, one_stream


class GroupByLength(Technique):
    """Put texts of similar length into one batch.

    Most of the padding goes, without touching a single text; the order of the data is no longer quite random.
    """

    axis = "packing"
    name = "group-by-length"
    evidence = (
        Published(
            "https://huggingface.co/docs/transformers/en/trainer_recipes",
            "batches of similar length waste little on padding",
        ),
    )

    def obstacle(self, case):
        return one_stream(case)

    def effects(self, case):
        return lengths(case, LEFT)

    def edits(self, case):
        return Edits(
            training_arguments=(
                argument("train_sampling_strategy", "group_by_length", "texts of similar length together"),
            )
        )


LEFT = 0.2
"""Padding left after grouping (assumed: sampled megabatches sort well, their edges do not)."""
