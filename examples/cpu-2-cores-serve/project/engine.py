"""OpenVINO GenAI's own continuous batching: a paged cache, prompts read in parts beside answers that go on."""

import math
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino
from openvino_genai import ContinuousBatchingPipeline, GenerationConfig, SchedulerConfig

from engine_thread import EngineThread, Request
from prompts import Prompts
from sampling import Sampling

BLOCK_TOKENS = 32
"""Of the paged cache on CPU."""
READ_TOKENS = 512
"""Tokens of prompts and answers in one step, or answers in flight would stand still behind a long prompt."""


def find_precision(weights: str) -> str:
    """Of the arithmetic: as exact as plain weights; between rounded ones in 16 bits, where the processor has them."""
    capabilities = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return "bf16" if weights != "float32" and "BF16" in capabilities else "f32"


class Engine(EngineThread):
    applied = frozenset({"top_k", "min_p", "repetition_penalty"})

    def __init__(self, config: dict, here: Path) -> None:
        serving = config["serving"]
        folder = here / serving["converted"]
        if not (folder / "openvino_model.xml").is_file():
            sys.exit(f"{folder} holds no converted weights: make them with `make setup`, or python convert.py")
        scheduler = SchedulerConfig()
        scheduler.max_num_seqs = serving["max_concurrency"]
        scheduler.max_num_batched_tokens = max(READ_TOKENS, serving["max_concurrency"])
        scheduler.num_kv_blocks = serving["max_concurrency"] * (math.ceil(serving["max_context"] / BLOCK_TOKENS) + 1)
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = False
        precision = find_precision(serving["weights"])
        properties = {"INFERENCE_NUM_THREADS": serving["threads"], "INFERENCE_PRECISION_HINT": precision}
        properties["KV_CACHE_PRECISION"] = precision  # its attention takes no other; the default is 8 bits
        self.pipeline = ContinuousBatchingPipeline(str(folder), scheduler, "CPU", properties)
        self.stop_tokens = set(Prompts(config).stop_tokens)
        self.running: list[tuple[Request, Any]] = []
        """With the handles by which their tokens are read."""
        super().__init__(serving["max_context"])

    @property
    def is_busy(self) -> bool:
        return bool(self.running)

    def advance(self) -> None:
        while taken := self.admit_next(self.add_request):
            self.running.append(taken)
        if not self.running:
            return
        self.pipeline.step()
        going_on = []
        for request, handle in self.running:
            finish = self.give_tokens(request, handle)
            if not finish:
                going_on.append((request, handle))
        self.running = going_on

    def add_request(self, request: Request) -> tuple[Request, Any]:
        tokens = openvino.Tensor(np.array([request.prompt], np.int64))
        return request, self.pipeline.add_request(request.number, tokens, self.describe(request.sampling))

    def describe(self, sampling: Sampling) -> GenerationConfig:
        settings = GenerationConfig()
        settings.max_new_tokens = sampling.max_new_tokens
        settings.ignore_eos = not sampling.ends
        if sampling.ends:
            settings.stop_token_ids = self.stop_tokens
        settings.repetition_penalty = sampling.repetition_penalty
        if sampling.temperature > 0:
            settings.do_sample = True
            settings.temperature, settings.top_p, settings.min_p = sampling.temperature, sampling.top_p, sampling.min_p
            settings.top_k = sampling.top_k or sys.maxsize
            settings.rng_seed = sampling.seed if sampling.seed is not None else secrets.randbits(32)
        return settings

    def give_tokens(self, request: Request, handle) -> str | None:
        tokens, finish = [], None
        while handle.can_read():
            (output,) = handle.read().values()
            tokens += output.generated_ids
            if output.finish_reason.name != "NONE":
                finish = output.finish_reason.name.lower()
        if tokens or finish:
            request.receive(tokens, finish)
        return finish

    def score(self, tokens: Sequence[int]) -> list[float]:
        """Log-probabilities of all but the first, each behind those before it."""
        settings = self.describe(Sampling(1, ends=False))
        settings.echo, settings.logprobs = True, 1  # the prompt is part of the answer, and what is said of its tokens
        scores: list[float] = []
        with self.at_rest():
            handle = self.pipeline.add_request(0, openvino.Tensor(np.array([tokens], np.int64)), settings)
            while self.pipeline.has_non_finished_requests():
                self.pipeline.step()
            while handle.can_read():
                (output,) = handle.read().values()
                scores += output.generated_log_probs
        return scores[1 : len(tokens)]  # of the first nothing is said

    def drop(self, numbers: set[int]) -> list[Request]:
        ended = [row for row in self.running if row[0].number in numbers]
        self.running = [row for row in self.running if row[0].number not in numbers]
        for _, handle in ended:
            handle.cancel()
        if ended and not self.running:
            self.pipeline.step()  # frees what they held
        return [request for request, _ in ended]

    def drop_all(self) -> list[Request]:
        return self.drop({request.number for request, _ in self.running})
