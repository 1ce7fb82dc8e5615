"""How the tokens of one answer are chosen, when it ends, and what is told of it."""

from collections.abc import Callable
from dataclasses import dataclass

Receive = Callable[[list[int], str | None], None]
"""New tokens, and at the end why it ended: stop (with the token that did), length, cancelled, error: ..."""

LEAST_TEMPERATURE = 1e-5
"""Less is 0: of 32 bits it may be no number above that, nor logits that are divided by it."""

LEAST_TOP_P = 1e-6
"""Of 0 no token would be left: the likeliest always is."""


@dataclass(frozen=True, slots=True)
class Sampling:
    max_new_tokens: int
    temperature: float = 0.0
    """0: always the likeliest token."""
    top_p: float = 1.0
    seed: int | None = None
    """From 0 on; ``None``: another one each time."""
    ends: bool = True
    """False: goes on after an end-of-sequence token, for measuring."""
    top_k: int = 0
    """0: of all tokens."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if self.temperature < LEAST_TEMPERATURE:
            object.__setattr__(self, "temperature", 0.0)
        object.__setattr__(self, "top_p", max(self.top_p, LEAST_TOP_P))

    @property
    def takes_likeliest(self) -> bool:
        return self.temperature == 0 and self.repetition_penalty == 1


def describe_failure(error: BaseException) -> str:
    """Why an answer ends that the engine failed at: whoever asked is told one line."""
    lines = str(error).splitlines() or [""]
    return f"error: {type(error).__name__}: {lines[0][:200]}"
