"""Tokens that the model may say next, proposed from what was said before: it checks several in one pass."""

from torch import nn

from prompts import Prompts

NGRAM = 3
"""Last tokens that must have stood there before; fewer are tried where these have not."""


class Proposer:
    def __init__(self, config: dict, prompts: Prompts, model: nn.Module) -> None:
        """Nothing is needed but the text."""

    def propose(self, tokens: list[int], count: int) -> list[int]:
        """What followed the last place where the text had its present end: prompt-lookup decoding."""
        for length in range(min(NGRAM, len(tokens) - 1), 0, -1):
            end = tokens[-length:]
            for start in range(len(tokens) - length - 1, -1, -1):
                if tokens[start : start + length] == end:
                    return tokens[start + length : start + length + count]
        return []
