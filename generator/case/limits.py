"""What a server may be asked for at most."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingLimits:
    """``max_context``: tokens of one prompt with its answer that ``max_concurrency`` sequences may have at once; ``max_waiting``:
    requests beside those. ``frontier`` pairs contexts with the most sequences that fit; ``limited_by`` says what ends the context.
    """

    max_context: int
    max_concurrency: int
    of_one_copy: int
    """of those, the most that one copy of the model computes"""
    max_waiting: int
    limited_by: str
    frontier: tuple[tuple[int, int], ...]
    memory_share: float
    """of each device, what the engine may take; 1 where it takes what it needs"""
    static_share: float
    """of what is free of a device before the model is there, weights and cache; the rest is for activations and graphs"""
    batched_tokens: int
    """of all sequences, computed in one pass at most"""


MEMORY_SHARE = 0.92
"""of the device, for weights, activations and cache together: vLLM's own default. The rest is CUDA's own; with 0.9 an 8B model on 24 GB
was 0.3 GiB short of 16 sequences, and was given to plain Transformers"""
GRACE_SECONDS = 25
"""for answers that are being written when the server is told to stop: within Kubernetes' terminationGracePeriodSeconds of 30"""
