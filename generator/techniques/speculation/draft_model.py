from collections.abc import Mapping
from typing import Any, ClassVar

from generator.case.case import Case
from generator.techniques.base import Published, Technique
from generator.techniques.cache.dynamic import explain_no_generation, explain_short_memory
from generator.techniques.traits import Trait

TOKENS = 4
"""proposed at a time"""
ACCEPTED = 0.6
"""of them, each for itself: between the pairs that Leviathan et al. measured (0.5 to 0.9, their table 3), bench.py says yours"""


class DraftModel(Technique):
    """A small model proposes the next tokens, and the model checks all of them in one pass (assisted generation).

    What it does: a pass over five tokens costs about as much as over one, where reading the weights takes the time; greedy answers
    stay the same, token by token.
    When it loses: where the small model is not much smaller, or guesses wrongly; where a pass is busy with several answers.
    Known problems: both must have one vocabulary; drawn answers are not sped up by Transformers' server; the share that is accepted
    is assumed.
    """

    axis = "speculation"
    name = "draft-model"
    modes = ("infer",)
    needs: ClassVar = {Trait.RUNS_DRAFT_MODEL: "{other} checks no proposed tokens; only {able} do"}
    evidence = (
        Published("https://arxiv.org/abs/2211.17192", "speculative decoding: 2 to 3 times faster, the same outputs"),
    )

    def obstacle(self, case: Case) -> str | None:
        draft = case.workload.draft
        if draft is None:
            return "no small model of the same vocabulary is named: --draft-model FOLDER or hub id"
        if not case.workload.serves:
            return "no server is made here, and only a server takes two models"
        if case.workload.served_adapter:
            return "nobody ran a small model beside an adapter here"
        if case.workload.concurrency > 1:
            return "a pass for several answers is busy without proposals: it is for one request at a time"
        if draft.vocab != case.model.vocab:
            return f"{draft.name} has a vocabulary of {draft.vocab}, and {case.model.name} one of {case.model.vocab}"
        if why := explain_short_memory(case):
            return f"{why}: what was proposed in vain could not be taken back"
        return explain_no_generation(case)

    def effects(self, case: Case) -> Mapping[str, Any]:
        draft = case.workload.draft
        if draft is None:
            return {}
        return {
            "draft_tokens": TOKENS,
            "draft_acceptance": ACCEPTED,
            "draft_cost": draft.params / case.model.params,
            "draft_params": draft.params,
            "draft_cached": draft.cached,
            "draft_held": draft.held,
        }
