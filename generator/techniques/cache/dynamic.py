from collections.abc import Mapping
from typing import Any

from generator.case.case import Case
from generator.techniques.base import Technique
from generator.techniques.traits import Trait


class Dynamic(Technique):
    """Keys and values grow by one token a step.

    What it does: holds the keys and values of the tokens that there are, no more; windows and states as the model keeps them.
    When it loses: against a static cache and compiled decoding on a GPU, where launching kernels takes longer than they
    run; in a server, whose answers are then computed one after the other.
    Known problems: its shapes change with every token, so the decoding step cannot be one compiled graph.
    """

    axis = "cache"
    name = "dynamic"
    baseline = True
    modes = ("infer",)
    provides = frozenset({Trait.TRANSFORMERS_MODEL})

    def obstacle(self, case: Case) -> str | None:
        if case.workload.serves and not explain_short_memory(case):
            return (
                "the server keeps each answer in a row that is allocated once: caches apart are of windows and states"
            )
        return explain_no_generation(case)

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"cache": "dynamic", "rows_apart": case.workload.serves}


def explain_no_generation(case: Case) -> str | None:
    """Why no tokens are generated, or ``None``."""
    return "the model reads, and generates nothing" if not case.workload.task_facts.generates else None


def explain_short_memory(case: Case) -> str | None:
    """What the model keeps instead of all tokens of the answers that are asked for, or ``None``."""
    if case.model.state_elements:
        return "the model keeps states"
    asked = case.workload.seq_len + case.workload.new_tokens
    window, alike = case.model.shortest_window, case.model.alike_positions
    if window and window < asked:
        return f"layers of the model see {window} tokens, of {asked} that are asked for"
    if alike and alike < asked:
        return f"the model turns the keys of texts of more than {alike} tokens otherwise, and {asked} are asked for"
    return None
