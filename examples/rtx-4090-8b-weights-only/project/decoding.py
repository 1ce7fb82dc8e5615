"""The next token of an answer, chosen from the model's logits."""

from collections.abc import Sequence

import numpy as np

from sampling import Sampling

APPLIED = frozenset({"top_k", "min_p", "repetition_penalty"})
"""What ``choose_token`` does beside temperature and top_p; other engines may do less."""


def choose_token(logits: np.ndarray, sampling: Sampling, random: np.random.Generator, before: Sequence[int]) -> int:
    """In the order of `generate`; ``before`` is prompt and answer so far. ValueError where logits are no numbers."""
    scores = logits.astype(np.float64)
    if sampling.repetition_penalty != 1:
        seen = np.unique(np.asarray(before))
        factor = np.where(scores[seen] > 0, 1 / sampling.repetition_penalty, sampling.repetition_penalty)
        scores[seen] *= factor
    if sampling.temperature == 0:
        return int(scores.argmax())
    with np.errstate(over="ignore"):  # by a temperature near 0 all but the likeliest are infinitely unlikely
        shares = np.exp((scores - scores.max()) / sampling.temperature)
    shares /= shares.sum()
    tokens = np.arange(len(shares))
    if 0 < sampling.top_k < len(shares):
        tokens = np.argpartition(-shares, sampling.top_k - 1)[: sampling.top_k]
        shares = shares[tokens] / shares[tokens].sum()
    if sampling.top_p < 1:
        likely = np.flatnonzero(shares >= (1 - sampling.top_p) / len(shares))  # the others are too few to sort
        order = likely[np.argsort(-shares[likely], kind="stable")]
        order = order[np.cumsum(shares[order]) - shares[order] < sampling.top_p]  # the likeliest always stays
        tokens, shares = tokens[order], shares[order]
    if sampling.min_p > 0:
        kept = shares >= sampling.min_p * shares.max()
        tokens, shares = tokens[kept], shares[kept]
    return int(tokens[random.choice(len(tokens), p=shares / shares.sum())])


def find_log_probability(logits: np.ndarray, token: int) -> float:
    """Of one token among all of the vocabulary."""
    scores = logits.astype(np.float64)
    top = scores.max()
    return float(scores[token] - top - np.log(np.exp(scores - top).sum()))
