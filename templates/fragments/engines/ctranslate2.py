"""CTranslate2: requests that wait are computed as one batch, which begins and ends together; the next wait for it."""

import json
import os
import sys
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from config_file import read_config

# MKL, which it takes on Intel's processors, packs float32 weights: twice the memory, half the tokens per second (4.8.5)
if read_config()["serving"]["weights"] == "float32":
    os.environ.setdefault("CT2_USE_MKL", "0")

import ctranslate2

from engine_thread import EngineThread, Request
from prompts import Prompts
from sampling import Sampling


class Engine(EngineThread):
    draws_by_seed = False  # it draws all its numbers from one

    def __init__(self, config: dict, here: Path) -> None:
        serving = config["serving"]
        folder = here / serving["converted"]
        if not (folder / "model.bin").is_file():
            sys.exit(f"{folder} holds no converted weights: make them with `make setup`, or python convert.py")
        self.rows, self.stop_tokens = serving["max_concurrency"], sorted(Prompts(config).stop_tokens)
        computed = "float32" if serving["weights"] == "float32" else "int8_float32"
        self.generator = ctranslate2.Generator(str(folder), compute_type=computed, intra_threads=serving["threads"])
        self.words = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))
        """By number: it is asked with words."""
        self.batch: list[Request] = []
        self.left: dict[int, int] = {}
        """Tokens that a request may still get."""
        super().__init__(serving["max_context"])

    @property
    def is_busy(self) -> bool:
        return bool(self.left)

    def advance(self) -> None:
        with self.changed:
            self.batch = self.take_alike()
        if not self.batch:
            return
        self.left = {request.number: request.sampling.max_new_tokens for request in self.batch}
        how = self.batch[0].sampling
        self.generator.generate_batch(
            [[self.words[token] for token in request.prompt] for request in self.batch],
            max_length=max(self.left.values()),
            include_prompt_in_result=False,
            end_token=self.stop_tokens if how.ends else [],
            return_end_token=True,
            callback=self.give,
            **describe(how),
        )

    def take_alike(self) -> list[Request]:
        """Those that wait, in their order, up to the first that wants its tokens chosen otherwise."""
        how = [describe(request.sampling) | {"ends": request.sampling.ends} for request in self.waiting]
        alike = len(list(takewhile(lambda other: other == how[0], how)))
        return [self.waiting.popleft() for _ in range(min(alike, self.rows))]

    def give(self, step: ctranslate2.GenerationStepResult) -> bool:
        """Whether its row is over."""
        request = self.batch[step.batch_id]
        if self.closed or request.number in self.cancelled or request.number not in self.left:
            return True
        self.left[request.number] -= 1
        ends = request.sampling.ends and step.token_id in self.stop_tokens
        finish = "stop" if ends else None if self.left[request.number] else "length"
        if finish:
            del self.left[request.number]
        request.receive([step.token_id], finish)
        return finish is not None

    def score(self, tokens: Sequence[int]) -> list[float]:
        """Log-probabilities of all but the first, each behind those before it."""
        (scored,) = self.generator.score_batch([[self.words[token] for token in tokens]])
        return list(scored.log_probs)

    def drop(self, numbers: set[int]) -> list[Request]:
        ended = [request for request in self.batch if request.number in numbers & self.left.keys()]
        for request in ended:
            del self.left[request.number]
        return ended

    def drop_all(self) -> list[Request]:
        return self.drop(set(self.left))

    def close(self) -> None:
        super().close()
        vars(self).pop("generator", None)  # its threads end now: later they could not free what is Python's


def describe(sampling: Sampling) -> dict:
    if sampling.temperature == 0:
        return {"sampling_topk": 1}
    return {"sampling_topk": 0, "sampling_temperature": sampling.temperature, "sampling_topp": sampling.top_p}
