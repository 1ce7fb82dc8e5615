"""What a chat template leaves out of conversations: a run refuses such a row, or learns less than the data says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from generator.inputs.leaves import load_labels


def describe_losses(rendered: Iterable[tuple[list[dict[str, Any]], str]]) -> tuple[str, ...]:
    """Notes on conversations, each with its text as the template writes it."""
    labels = load_labels()
    unsaid, thoughtless, looked_at = [], 0, 0
    for messages, text in rendered:
        looked_at += 1
        if what := labels.find_left_out(messages, text):
            unsaid.append(what)
        learned = [turn for turn in messages if turn["role"] == "assistant" and turn.get("weight") != 0]
        thoughtless += any(labels.leaves_words_out(turn, text) for turn in learned)
    notes = []
    if unsaid:
        notes.append(
            f"the chat template leaves out {unsaid[0]} and the like in {len(unsaid):,} of the {looked_at:,} conversations "
            "looked at: train.py refuses such a row, and --skip-bad leaves it out; a model whose template has a place for it learns it"
        )
    if thoughtless:
        notes.append(
            f"in {thoughtless:,} of the {looked_at:,} conversations looked at the chat template leaves out some of what the assistant "
            "thinks, or says beside a tool call: that is not learned"
        )
    return tuple(notes)
