"""What a chat template leaves out of conversations: a run refuses such a row, or learns less than the data says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from generator.inputs.leaves import load_labels


def describe_losses(rendered: Iterable[tuple[list[dict[str, Any]], str, str]]) -> tuple[str, ...]:
    """Notes on conversations, each with its text as the template writes it, and why train.py refuses it."""
    labels = load_labels()
    refused, thoughtless, looked_at = [], 0, 0
    for messages, text, problem in rendered:
        looked_at += 1
        if problem:
            refused.append(problem)
        learned = [turn for turn in messages if turn["role"] == "assistant" and turn.get("weight") != 0]
        thoughtless += any(labels.leaves_words_out(turn, text) for turn in learned)
    notes = []
    if refused:
        notes.append(
            f"train.py refuses {len(refused):,} of the {looked_at:,} conversations looked at, and --skip-bad leaves them out: {refused[0]}"
        )
    if thoughtless:
        notes.append(
            f"in {thoughtless:,} of the {looked_at:,} conversations looked at the chat template leaves out some of what the assistant "
            "thinks, or says beside a tool call: that is not learned"
        )
    return tuple(notes)
