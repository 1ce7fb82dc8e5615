from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from generator.case.case import Case
from generator.techniques.base import Published, Technique
from generator.techniques.edits import Edits, make_argument
from generator.techniques.packing.padded import estimate_lengths, explain_one_stream
from generator.techniques.padding import make_padding_edits
from generator.techniques.traits import Trait

PADDING_LEFT = 0.2
"""Share of the padding that grouping leaves (assumed: sampled megabatches sort well, their edges do not)."""


class GroupByLength(Technique):
    """Put texts of similar length into one batch.

    What it does: most of the padding goes, without touching a single text.
    When it loses: where lengths hardly differ, and against packing.
    Known problems: the order of the data is no longer quite random; batches differ in length; a data set that can only
    be streamed is not grouped.
    """

    axis = "packing"
    name = "group-by-length"
    provides = frozenset({Trait.VARYING_SHAPES, Trait.LENGTH_GROUPS})
    evidence = (
        Published(
            "https://huggingface.co/docs/transformers/en/trainer_recipes",
            "batches of similar length waste little on padding",
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        return explain_one_stream(case)

    def effects(self, case: Case) -> Mapping[str, Any]:
        return estimate_lengths(case, PADDING_LEFT)

    def edits(self, case: Case) -> Edits:
        padding = make_padding_edits(case)
        return replace(
            padding,
            imports=(*padding.imports, "from length_groups import SeedLengthGroups"),
            fragments=(*padding.fragments, "length_groups"),
            callbacks=("SeedLengthGroups()",),
            training_arguments=(
                make_argument("train_sampling_strategy", "group_by_length", "texts of similar length together"),
            ),
        )
