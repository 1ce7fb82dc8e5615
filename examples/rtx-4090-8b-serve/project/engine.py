"""Transformers as the engine: several answers are computed together, each joins and leaves between two tokens."""

import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from decoding import choose_token, propose_tokens
from machine import peak_memory
from model import load_model
from prompts import Prompts
from sampling import Sampling
from slots import make_decoder

Receive = Callable[[list[int], str | None], None]


@dataclass(eq=False)
class Sequence:
    """An answer that is being written. ``tokens``: prompt and answer, of which the last is not computed yet."""

    number: int
    tokens: list[int]
    sampling: Sampling
    receive: Receive
    generator: torch.Generator
    new_tokens: int = 0
    finish: str | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)


class Engine:
    """The model of config.yaml, loaded; tokens in, tokens out."""

    def __init__(self, config: dict, here: Path) -> None:
        serving = config["serving"]
        if "threads" in serving:
            torch.set_num_threads(serving["threads"])
        self.stops = set(Prompts(config).stop_tokens)
        self.model = load_model(config)
        self.rows, lookup = serving["max_concurrency"], serving.get("prompt_lookup_tokens", 0)
        self.decoder = make_decoder(self.model, self.rows, serving["max_context"] + lookup)
        self.lookup = lookup if self.decoder.takes_back else 0
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        """By row of the decoder."""
        self.last_number, self.closed = 0, False
        self.changed = threading.Condition()
        self.thread: threading.Thread | None = None
        if serving.get("compile"):
            self.compile()

    def compile(self) -> None:
        """Before anyone waits for it: minutes, where nothing of it is cached. Transformers compiles for GPUs alone."""
        self.decoder.compile()
        self.generate([[0, 0]], [Sampling(3, ends=False)])

    def submit(self, prompt: list[int], sampling: Sampling, receive: Receive) -> int:
        """From any thread. ``receive`` is called from the engine's, the last time with why the answer ends."""
        with self.changed:
            if self.closed:
                raise RuntimeError("the engine is closed")
            sequence = self.make_sequence(prompt, sampling, receive)
            self.waiting.append(sequence)
            if self.thread is None:
                self.thread = threading.Thread(target=self.run, name="engine", daemon=True)
                self.thread.start()
            self.changed.notify()
            return sequence.number

    def make_sequence(self, prompt: list[int], sampling: Sampling, receive: Receive) -> Sequence:
        self.last_number += 1
        generator = torch.Generator()
        if sampling.seed is None:
            generator.seed()
        else:
            generator.manual_seed(sampling.seed)
        return Sequence(self.last_number, list(prompt), sampling, receive, generator)

    def cancel(self, request: int) -> None:
        """At the next token; ``receive`` is told. One that has ended already is passed over."""
        with self.changed:
            for sequence in [*self.waiting, *self.running]:
                if sequence.number == request:
                    sequence.cancelled.set()

    def generate(self, prompts: list[list[int]], samplings: list[Sampling]) -> list[list[int]]:
        """The new tokens of each prompt, end-of-sequence tokens included. Not beside ``submit``: rows are shared."""
        if self.thread is not None:
            raise RuntimeError("this engine answers requests one by one: generate is for a process of its own")
        answers: list[list[int]] = [[] for _ in prompts]

        def collect(answer: list[int], tokens: list[int], finish: str | None) -> None:
            answer += tokens
            if finish and finish.startswith("error"):
                raise RuntimeError(finish)

        for prompt, sampling, answer in zip(prompts, samplings, answers, strict=True):
            receive = lambda tokens, finish, answer=answer: collect(answer, tokens, finish)  # noqa: E731
            self.waiting.append(self.make_sequence(prompt, sampling, receive))
        while self.waiting or self.running:
            self.step()
        return answers

    def run(self) -> None:
        """The engine's thread."""
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.closed or self.waiting or self.running)
                if self.closed:
                    break
            self.step()
        for sequence in [*self.waiting, *self.running]:
            sequence.receive([], "cancelled")

    @torch.inference_mode()
    def step(self) -> None:
        """One prompt is read, if a row is free for it; then each answer has its next token."""
        self.drop_cancelled()
        try:
            if self.waiting and len(self.running) < self.rows:
                with self.changed:
                    sequence = self.waiting.popleft()
                    self.running.append(sequence)
                self.take_tokens([self.decoder.read_prompt(len(self.running) - 1, sequence.tokens)], [sequence])
            if self.lookup and len(self.running) == 1 and self.running[0].sampling.temperature == 0:
                self.look_up(self.running[0])
            elif self.running:
                logits = self.decoder.step([each.tokens[-1] for each in self.running], self.list_places())
                self.take_tokens(list(logits), list(self.running))
        except RuntimeError as error:  # no memory left, most of all: those that were computed together end together
            traceback.print_exc(file=sys.stderr)
            for sequence in list(self.running):
                self.end(sequence, [], f"error: {type(error).__name__}: {str(error).splitlines()[0][:200]}")

    def list_places(self) -> list[int]:
        return [len(each.tokens) - 1 for each in self.running]

    def take_tokens(self, logits: list[torch.Tensor], sequences: list[Sequence]) -> None:
        for row, sequence in zip(logits, sequences, strict=True):
            self.add(sequence, [choose_token(row, sequence.sampling, sequence.generator)])

    def look_up(self, sequence: Sequence) -> None:
        """What followed the same words before is checked in one pass, and kept as far as the model would choose it."""
        left = sequence.sampling.max_new_tokens - sequence.new_tokens - 1
        proposed = propose_tokens(sequence.tokens, min(self.lookup, left))
        place = len(sequence.tokens) - 1
        chosen = self.decoder.check([sequence.tokens[-1], *proposed], place).argmax(-1).tolist()
        agreed = next((n for n, token in enumerate(proposed) if token != chosen[n]), len(proposed))
        self.add(sequence, chosen[: agreed + 1])

    def add(self, sequence: Sequence, tokens: list[int]) -> None:
        """Up to the first that ends the answer."""
        ends = [place for place, token in enumerate(tokens) if sequence.sampling.ends and token in self.stops]
        tokens = tokens[: ends[0] + 1] if ends else tokens
        sequence.tokens += tokens
        sequence.new_tokens += len(tokens)
        if ends or sequence.new_tokens >= sequence.sampling.max_new_tokens:
            self.end(sequence, tokens, "stop" if ends else "length")
        else:
            sequence.receive(tokens, None)

    def drop_cancelled(self) -> None:
        for sequence in [each for each in self.waiting if each.cancelled.is_set()]:
            with self.changed:
                self.waiting.remove(sequence)
            sequence.receive([], "cancelled")
        for sequence in [each for each in self.running if each.cancelled.is_set()]:
            self.end(sequence, [], "cancelled")

    def end(self, sequence: Sequence, tokens: list[int], finish: str) -> None:
        """The last row takes the place of the one that ends."""
        with self.changed:
            row, last = self.running.index(sequence), self.running.pop()
            if last is not sequence:
                self.running[row] = last
                self.decoder.move_row(len(self.running), row, len(last.tokens))
        sequence.receive(tokens, finish)

    @property
    def memory_gib(self) -> float:
        return peak_memory()["peak_memory_gib"]

    def close(self) -> None:
        """What is unfinished is told that it is cancelled."""
        with self.changed:
            self.closed = True
            self.changed.notify()
        if self.thread is not None:
            self.thread.join()
