"""OpenVINO GenAI's own continuous batching: a paged cache, prompts read in parts beside answers that go on.

Its step holds Python's lock, seconds of a long prompt: it runs in a process beside this one (openvino_steps.py).
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from engine_process import LibraryGone, LibraryProcess
from engine_thread import EngineThread, Request
from prompts import Prompts


class Engine(EngineThread):
    applied = frozenset({"top_k", "min_p", "repetition_penalty"})
    fatal = (LibraryGone,)

    def __init__(self, config: dict, here: Path) -> None:
        serving = config["serving"]
        folder = here / serving["converted"]
        if not (folder / "openvino_model.xml").is_file():
            sys.exit(f"{folder} holds no converted weights: make them with `make setup`, or python convert.py")
        self.steps = LibraryProcess(here / "openvino_steps.py", folder, serving, Prompts(config).stop_tokens)
        self.running: dict[int, Request] = {}
        super().__init__(serving["max_context"])

    @property
    def memory_gib(self) -> float:
        return super().memory_gib + self.steps.peak_gib

    @property
    def is_busy(self) -> bool:
        return bool(self.running)

    def advance(self) -> None:
        while taken := self.admit_next(self.add_request):
            self.running[taken.number] = taken
        if not self.running:
            return
        for number, (tokens, finish) in self.steps.call("step").items():
            request = self.running.pop(number) if finish else self.running[number]
            request.receive(tokens, finish)

    def add_request(self, request: Request) -> Request:
        self.steps.call("add", request.number, list(request.prompt), request.sampling)
        return request

    def score(self, tokens: Sequence[int]) -> list[float]:
        """Log-probabilities of all but the first, each behind those before it."""
        with self.at_rest():
            return self.steps.call("score", list(tokens))

    def drop(self, numbers: set[int]) -> list[Request]:
        ended = numbers & self.running.keys()
        dropped = [self.running.pop(number) for number in ended]
        if ended:
            self.steps.call("cancel", ended)
        return dropped

    def drop_all(self) -> list[Request]:
        return self.drop(set(self.running))

    def close(self) -> None:
        super().close()
        self.steps.close()
