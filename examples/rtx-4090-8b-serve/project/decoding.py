"""The next token of an answer: chosen from the model's logits, or proposed from what was said before."""

import torch

from sampling import Sampling

NGRAM = 3
"""Last tokens that must have stood there before; fewer are tried where these have not."""


def choose_token(logits: torch.Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    if sampling.temperature == 0:
        return int(logits.argmax())
    # drawn on the CPU: a seed gives the same answer on every device that gives the same logits
    shares = (logits.float().cpu() / sampling.temperature).softmax(-1)
    if sampling.top_p < 1:
        ordered, places = shares.sort(descending=True)
        ordered[ordered.cumsum(-1) - ordered >= sampling.top_p] = 0  # the likeliest always stays
        shares = torch.zeros_like(shares).scatter(0, places, ordered)
    return int(torch.multinomial(shares, 1, generator=generator))


def propose_tokens(tokens: list[int], count: int) -> list[int]:
    """What followed the last place where the text had its present end: prompt-lookup decoding."""
    if count < 1:
        return []
    for length in range(min(NGRAM, len(tokens) - 1), 0, -1):
        end = tokens[-length:]
        for start in range(len(tokens) - length - 1, -1, -1):
            if tokens[start : start + length] == end:
                return tokens[start + length : start + length + count]
    return []
