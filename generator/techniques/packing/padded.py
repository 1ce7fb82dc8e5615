from collections.abc import Mapping
from typing import Any

from generator.case.case import Case
from generator.techniques.base import Technique
from generator.techniques.edits import Edits
from generator.techniques.padding import make_padding_edits
from generator.techniques.traits import Trait


class Padded(Technique):
    """One text a sequence, filled up to the longest of its batch.

    What it does: keeps every text whole and by itself.
    When it loses: where lengths differ: padding is computed and thrown away.
    Known problems: one padded row gives the batch a dense mask, for which SDPA has no flash kernel; where attention is
    causal the emitted project drops that mask, which changes no loss and no gradient.
    """

    axis = "packing"
    name = "padded"
    baseline = True
    provides = frozenset({Trait.VARYING_SHAPES})

    def obstacle(self, case: Case) -> str | None:
        return explain_one_stream(case)

    def effects(self, case: Case) -> Mapping[str, Any]:
        return estimate_lengths(case, 1.0, "random")

    def edits(self, case: Case) -> Edits:
        return make_padding_edits(case)


def explain_one_stream(case: Case) -> str | None:
    """Why there is nothing to pad, or ``None``."""
    if case.workload.task == "causal-lm":
        return "plain text is one stream: cut into full sequences there is nothing to pad"
    return None


def estimate_lengths(case: Case, padding_left: float, row_order: str) -> dict[str, Any]:
    """How long the computed sequences are when ``padding_left`` of the padding remains and texts come in ``row_order``.

    Without a look at the data, nothing is claimed: full sequences.
    """
    return {"length_shares": case.workload.fill_shares, "padding_left": padding_left, "row_order": row_order}
