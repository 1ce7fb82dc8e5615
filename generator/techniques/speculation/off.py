from collections.abc import Mapping
from typing import Any

from generator.case.case import Case
from generator.techniques.base import Technique


class Off(Technique):
    """One token of an answer for each pass of the model.

    What it does: nothing is proposed: every pass gives the token that it was made for.
    When it loses: where answers repeat their prompt (a summary, an edited text, code), and one request is alone.
    Known problems: none that we know of.
    """

    axis = "speculation"
    name = "off"
    baseline = True
    modes = ("infer",)

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"draft_tokens": 0}
