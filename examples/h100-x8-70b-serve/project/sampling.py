"""How the tokens of one answer are chosen, and when it ends."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sampling:
    max_new_tokens: int
    temperature: float = 0.0
    """0: always the likeliest token."""
    top_p: float = 1.0
    seed: int | None = None
    ends: bool = True
    """False: goes on after an end-of-sequence token, for measuring."""
