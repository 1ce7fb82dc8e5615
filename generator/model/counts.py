"""What the parts of a model come to: trained adapters, the cache of keys and values, work for a token."""

from __future__ import annotations

from generator.model.anatomy import MULTIPLIED, Anatomy

ADAPTED = ("linear", "outer")


def lora_params(made: Anatomy, targets: str | tuple[str, ...], rank: int) -> int:
    """Parameters of rank-``rank`` adapters as PEFT makes them: two matrices for each module that ``targets`` names.

    "all-linear" takes every Linear layer but the output. Raises ``ValueError`` for that of a model with experts: PEFT 0.21
    adapts fused experts and routers by the model's own rules, and leaves out shared ones.
    """
    if targets == "all-linear" and any(part.kind == "expert" for part in made.parts):
        raise ValueError(f"what all-linear adapts in {made.whole.type!r} is PEFT's own choice: name the modules")
    chosen = [part for part in made.parts if part.kind in ADAPTED]
    if targets != "all-linear":
        chosen = [part for part in chosen if part.name.rsplit(".", 1)[-1] in targets]
    return sum(rank * (part.inputs + part.outputs) * part.count for part in chosen)


def cached_elements(made: Anatomy, tokens: int) -> int:
    """Elements that generation keeps of one sequence of ``tokens``: keys and values within each layer's window, and states."""
    kept = sum(s.layers * s.cached * min(tokens, s.window or tokens) for s in made.scores if not s.stack)
    return kept + sum(state.layers * state.elements for state in made.states)


def forward_flops(made: Anatomy, tokens: int) -> float:
    """Matrix products of one forward pass over a sequence of ``tokens`` by the text model, two operations a multiply-add.

    Scores are counted in full as ``torch.utils.flop_counter`` does, whatever the mask hides.
    """
    matrices = sum(
        2.0 * part.inputs * part.outputs * part.count * part.share
        for part in made.parts
        if not part.stack and part.kind in MULTIPLIED
    )
    scores = sum(2.0 * s.layers * s.heads * (s.key_dim + s.value_dim) * tokens for s in made.scores if not s.stack)
    return tokens * (matrices + scores)
