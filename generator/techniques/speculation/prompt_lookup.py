from collections.abc import Mapping
from typing import Any, ClassVar

from generator.case.case import Case
from generator.techniques.base import Published, Technique
from generator.techniques.cache.dynamic import explain_no_generation, explain_short_memory
from generator.techniques.edits import Edits, make_argument
from generator.techniques.traits import Trait

TOKENS = 4
"""proposed at a time"""
ACCEPTED = 0.3
"""of them, each for itself: assumed, as texts differ (a summary repeats more, a poem nothing)"""


class PromptLookup(Technique):
    """Tokens are proposed that followed the same words before in prompt or answer, and checked in one pass.

    What it does: a pass over five tokens costs about as much as over one, where reading the weights takes the time; greedy
    answers stay the same, token by token.
    When it loses: where answers repeat nothing, and where a pass is busy with the tokens of several answers.
    Known problems: drawn answers are not sped up by Transformers' server; the share that is accepted is assumed.
    """

    axis = "speculation"
    name = "prompt-lookup"
    modes = ("infer",)
    needs: ClassVar = {Trait.CHECKS_PROPOSALS: "{other} checks no proposed tokens; only {able} do"}
    request_only = "how much of it is accepted depends on the texts: bench.py measures it on yours"
    evidence = (
        Published(
            "https://github.com/apoorvumang/prompt-lookup-decoding",
            "2 to 4 times faster where the answer repeats the prompt (summaries, questions on a text), the same tokens",
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        if case.workload.concurrency > 1:
            return "a pass for several answers is busy without proposals: it is for one request at a time"
        if why := explain_short_memory(case):
            return f"{why}: what was proposed in vain could not be taken back"
        return explain_no_generation(case)

    def conflict(self, other: Technique, case: Case) -> str | None:
        if Trait.STATIC_CACHE in other.traits(case) and not case.workload.serves:
            return "generate takes proposals back from a cache that grows"
        return None

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"draft_tokens": TOKENS, "draft_acceptance": ACCEPTED}

    def edits(self, case: Case) -> Edits:
        if case.workload.serves:  # the server's own, by its config.yaml
            return Edits()
        reason = "proposed from the text itself, checked in one pass: the same tokens"
        return Edits(infer_generate_arguments=(make_argument("prompt_lookup_num_tokens", TOKENS, reason),))
