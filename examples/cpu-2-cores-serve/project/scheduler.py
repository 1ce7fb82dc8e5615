"""Requests that join and leave one running batch: prompts are read in parts, between steps of those that go on."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from engine_thread import EngineThread, Request

READ_TOKENS = 512
"""Tokens of prompts that are read between two steps, or answers in flight would stand still behind a long prompt."""


class Rows(Protocol):
    """What computes: keys and values of ``count`` sequences, each in a row; those that go on in the first ones."""

    count: int
    context: int
    """Tokens that a row holds."""

    def read_prompt(self, row: int, tokens: Sequence[int], past: int) -> np.ndarray:
        """Put tokens behind ``past`` ones in a row; the logits of the last."""

    def step(self, tokens: Sequence[int], pasts: Sequence[int]) -> np.ndarray:
        """One token for each of the first rows; logits of each."""

    def move_row(self, source: int, target: int, length: int) -> None:
        """Into the place of a sequence that has ended."""


class Sequenced:
    """A request in its row."""

    def __init__(self, request: Request) -> None:
        self.request, self.sampling = request, request.sampling
        self.past = 0
        """Tokens that stand in its row."""
        self.added = 0
        self.token = 0
        """The last one, which is in no row yet."""
        self.random = np.random.default_rng(request.sampling.seed)


class Scheduler(EngineThread):
    def __init__(self, rows: Rows, stop_tokens: Sequence[int]) -> None:
        self.rows, self.stop_tokens = rows, frozenset(stop_tokens)
        self.active: list[Sequenced] = []
        """Row by row."""
        self.reading: Sequenced | None = None
        """In the row behind them."""
        super().__init__(rows.context)

    @property
    def is_busy(self) -> bool:
        return bool(self.active or self.reading)

    def advance(self) -> None:
        self.read_prompts()
        self.add_tokens()

    def drop(self, numbers: set[int]) -> list[Request]:
        ended = [sequence for sequence in self.active if sequence.request.number in numbers]
        if self.reading and self.reading.request.number in numbers:
            ended.append(self.reading)
            self.reading = None
        self.free_rows([sequence for sequence in ended if sequence in self.active])
        return [sequence.request for sequence in ended]

    def drop_all(self) -> list[Request]:
        ended = [*self.active, *([self.reading] if self.reading else [])]
        self.active, self.reading = [], None
        return [sequence.request for sequence in ended]

    def read_prompts(self) -> None:
        left = READ_TOKENS
        while left > 0 and (sequence := self.take_next()):
            self.reading = sequence
            prompt = sequence.request.prompt
            tokens = prompt[sequence.past : sequence.past + left]
            logits = self.rows.read_prompt(len(self.active), tokens, sequence.past)
            sequence.past += len(tokens)
            left -= len(tokens)
            if sequence.past == len(prompt):
                self.reading = None
                self.active.append(sequence)
                self.give_tokens([sequence], logits[None])

    def take_next(self) -> Sequenced | None:
        """The prompt that is being read, or the next one if a row is free for it."""
        if self.reading or len(self.active) == self.rows.count:
            return self.reading
        with self.changed:
            return Sequenced(self.waiting.popleft()) if self.waiting else None

    def add_tokens(self) -> None:
        if self.active:
            logits = self.rows.step([s.token for s in self.active], [s.past for s in self.active])
            for sequence in self.active:
                sequence.past += 1
            self.give_tokens(list(self.active), logits)

    def give_tokens(self, sequences: Sequence[Sequenced], logits: np.ndarray) -> None:
        """The next token of each, and the row free again where it was the last."""
        finishes = []
        for sequence, best, row in zip(sequences, logits.argmax(-1).tolist(), logits, strict=True):
            sequence.token = draw_token(row, sequence) if sequence.sampling.temperature > 0 else best
            sequence.added += 1
            finishes.append(self.find_finish(sequence))
        self.free_rows([sequence for sequence, finish in zip(sequences, finishes, strict=True) if finish])
        for sequence, finish in zip(sequences, finishes, strict=True):
            sequence.request.receive([sequence.token], finish)

    def find_finish(self, sequence: Sequenced) -> str | None:
        if sequence.sampling.ends and sequence.token in self.stop_tokens:
            return "stop"
        return "length" if sequence.added == sequence.sampling.max_new_tokens else None

    def free_rows(self, ended: Sequence[Sequenced]) -> None:
        """The last row moves into the place of each, and that of a prompt that is being read follows."""
        for sequence in ended:
            row, last = self.active.index(sequence), self.active[-1]
            if last is not sequence:
                self.rows.move_row(len(self.active) - 1, row, last.past)
            self.active[row] = last
            self.active.pop()
            if self.reading:
                self.rows.move_row(len(self.active) + 1, len(self.active), self.reading.past)


def draw_token(logits: np.ndarray, sequence: Sequenced) -> int:
    """By chance, among the likeliest that have ``top_p`` together."""
    scaled = logits.astype(np.float64) / sequence.sampling.temperature
    shares = np.exp(scaled - scaled.max())
    shares /= shares.sum()
    order = np.arange(len(shares))
    if sequence.sampling.top_p < 1:
        order = np.argsort(-shares, kind="stable")
        before = np.cumsum(shares[order]) - shares[order]
        order = order[before < sequence.sampling.top_p]
    return int(order[sequence.random.choice(len(order), p=shares[order] / shares[order].sum())])
