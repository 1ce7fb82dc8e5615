from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from generator.case.case import Case
from generator.case.workload import Workload
from generator.techniques.base import Published, Technique
from generator.techniques.edits import Edits, make_argument
from generator.techniques.packing.padded import estimate_lengths, explain_one_stream
from generator.techniques.padding import make_padding_edits
from generator.techniques.traits import Trait

MEGABATCH = 50
"""batches that Transformers sorts together (5.23, trainer_pt_utils.get_length_grouped_indices), or a quarter of the epoch's if fewer"""


class GroupByLength(Technique):
    """Put texts of similar length into one batch.

    What it does: most of the padding goes, without touching a single text.
    When it loses: where lengths hardly differ, and against packing.
    Known problems: the order of the data is no longer quite random; batches differ in length; a data set that can only
    be streamed is not grouped.
    """

    axis = "packing"
    name = "group-by-length"
    adds = 2  # a setting, and another order of the data
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
        return {**estimate_lengths(case, 0.0, "sorted"), "sorted_batches": count_sorted_batches(case.workload)}

    def edits(self, case: Case) -> Edits:
        padding = make_padding_edits(case)
        return replace(
            padding,
            imports=(*padding.imports, "from length_groups import SeedLengthGroups"),
            fragments=(*padding.fragments, "length_groups", "epoch_order"),
            callbacks=("SeedLengthGroups()",),
            training_arguments=(
                make_argument("train_sampling_strategy", "group_by_length", "texts of similar length together"),
            ),
        )


def count_sorted_batches(workload: Workload) -> int:
    """Batches of all devices that are sorted together: where the data's size is not known, as many as there may be."""
    if workload.steps is None or workload.max_steps:
        return MEGABATCH
    return max(1, min(int(workload.steps / workload.epochs) // 4, MEGABATCH))
