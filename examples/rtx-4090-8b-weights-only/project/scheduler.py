"""Requests that join and leave one running batch: prompts are read in parts, between steps of those that go on."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from decoding import APPLIED, choose_token, find_log_probability
from engine_thread import EngineThread, Request
from sampling import describe_failure

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
    """A request in its row. ValueError where its seed is none."""

    def __init__(self, request: Request) -> None:
        self.request, self.sampling = request, request.sampling
        self.past = 0
        """Tokens that stand in its row."""
        self.added = 0
        self.tokens = list(request.prompt)
        """Prompt and answer, whose last one is in no row yet."""
        self.random = np.random.default_rng(request.sampling.seed)


class Scheduler(EngineThread):
    applied = APPLIED

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
            tokens = prompt[sequence.past : sequence.past + self.count_readable(left)]
            try:
                logits = self.rows.read_prompt(len(self.active), tokens, sequence.past)
            except Exception as error:  # of this one alone, memory too: the rows of the others are as they were
                self.report(error)
                self.reading = None
                sequence.request.receive([], describe_failure(error))
                continue
            sequence.past += len(tokens)
            left -= len(tokens)
            if sequence.past == len(prompt):
                self.reading = None
                self.active.append(sequence)
                self.give_tokens([sequence], logits[None])

    def score(self, tokens: Sequence[int]) -> list[float]:
        """Log-probabilities of all but the first, each behind those before it, step by step as answers are."""
        with self.at_rest():  # the first row is taken for it
            logits, scores = self.as_array(self.rows.read_prompt(0, tokens[:1], 0)), []
            for past, token in enumerate(tokens[1:], 1):
                scores.append(find_log_probability(logits, token))
                if past + 1 < len(tokens):
                    logits = self.as_array(self.rows.step([token], [past])[0])
        return scores

    def take_next(self) -> Sequenced | None:
        """The prompt that is being read, or the next one if a row is free for it."""
        if self.reading or len(self.active) == self.rows.count:
            return self.reading
        return self.admit_next(Sequenced)

    def count_readable(self, left: int) -> int:
        """Tokens of a prompt that are read at once: an engine may have to read all of them."""
        return left

    def as_array(self, logits: Any) -> np.ndarray:
        """Those of one row, where they are of a library of the engine's own."""
        return logits

    def add_tokens(self) -> None:
        if self.active:
            logits = self.rows.step([s.tokens[-1] for s in self.active], [s.past for s in self.active])
            for sequence in self.active:
                sequence.past += 1
            self.give_tokens(list(self.active), logits)

    def give_tokens(self, sequences: Sequence[Sequenced], logits: np.ndarray) -> None:
        """The next token of each, and the row free again where it was the last."""
        for sequence, best, row in zip(sequences, logits.argmax(-1).tolist(), logits, strict=True):
            try:
                token = best if sequence.sampling.takes_likeliest else self.draw(sequence, row)
            except Exception as error:  # of this one alone: the others go on
                self.report(error)
                self.end(sequence, [], describe_failure(error))
            else:
                self.add(sequence, [token])

    def draw(self, sequence: Sequenced, logits: Any) -> int:
        return choose_token(self.as_array(logits), sequence.sampling, sequence.random, sequence.tokens)

    def add(self, sequence: Sequenced, tokens: list[int]) -> None:
        """The next tokens of an answer, up to the first that ends it."""
        sampling, new, finish = sequence.sampling, [], None
        for token in tokens:
            new.append(token)
            if sampling.ends and token in self.stop_tokens:
                finish = "stop"
            elif sequence.added + len(new) == sampling.max_new_tokens:
                finish = "length"
            if finish:
                break
        sequence.tokens += new
        sequence.added += len(new)
        if finish:
            self.end(sequence, new, finish)
        else:
            sequence.request.receive(new, None)

    def end(self, sequence: Sequenced, tokens: list[int], finish: str) -> None:
        self.free_rows([sequence])
        sequence.request.receive(tokens, finish)

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
