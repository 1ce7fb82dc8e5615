"""OpenVINO GenAI's continuous batching, step by step, in a process of its own: `engine.py` starts it and asks it."""

import quiet_imports  # noqa: F401  # isort: skip

import math
import secrets
import sys
from pathlib import Path
from typing import Any

import numpy as np
import openvino
from openvino_genai import ContinuousBatchingPipeline, GenerationConfig, SchedulerConfig

from engine_process import answer_calls
from sampling import Sampling

BLOCK_TOKENS = 32
"""Of the paged cache on CPU."""
READ_TOKENS = 512
"""Tokens of prompts and answers in one step, or answers in flight would stand still behind a long prompt."""
Part = tuple[list[int], str | None]
"""New tokens of an answer, and at the end why it ends."""


def find_precision(weights: str) -> str:
    """Of the arithmetic: that of plain weights; between rounded ones in 16 bits, where the processor has them."""
    capabilities = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return "bf16" if weights != "float32" and "BF16" in capabilities else "f32"


def count_threads(weights: str, threads: int) -> int:
    """Of products: with one, those of plain bf16 weights divide by zero on processors with AMX (OpenVINO 2026.4)."""
    return max(2, threads) if weights == "bfloat16" else threads


class Steps:
    def __init__(self, folder: Path, serving: dict, stop_tokens: list[int]) -> None:
        scheduler = SchedulerConfig()
        scheduler.max_num_seqs = serving["max_concurrency"]
        scheduler.max_num_batched_tokens = max(READ_TOKENS, serving["max_concurrency"])
        scheduler.num_kv_blocks = serving["max_concurrency"] * (math.ceil(serving["max_context"] / BLOCK_TOKENS) + 1)
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = False
        precision = find_precision(serving["weights"])
        threads = count_threads(serving["weights"], serving["threads"])
        properties = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": precision}
        properties["KV_CACHE_PRECISION"] = precision  # its attention takes no other; the default is 8 bits
        self.pipeline = ContinuousBatchingPipeline(str(folder), scheduler, "CPU", properties)
        self.stop_tokens = set(stop_tokens)
        self.handles: dict[int, Any] = {}
        """By which the tokens of requests that are under way are read."""

    def add(self, number: int, prompt: list[int], sampling: Sampling) -> None:
        tokens = openvino.Tensor(np.array([prompt], np.int64))
        self.handles[number] = self.pipeline.add_request(number, tokens, self.describe(sampling))

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

    def step(self) -> dict[int, Part]:
        """What was added, by request."""
        self.pipeline.step()
        parts = {number: read_part(handle) for number, handle in self.handles.items()}
        self.handles = {number: handle for number, handle in self.handles.items() if parts[number][1] is None}
        return {number: part for number, part in parts.items() if part != ([], None)}

    def cancel(self, numbers: set[int]) -> None:
        ended = [self.handles.pop(number) for number in numbers]
        for handle in ended:
            handle.cancel()
        if ended and not self.handles:
            self.pipeline.step()  # frees what they held

    def score(self, tokens: list[int]) -> list[float]:
        """Log-probabilities of all but the first, each behind those before it."""
        settings = self.describe(Sampling(1, ends=False))
        settings.echo, settings.logprobs = True, 1  # the prompt is part of the answer, and what is said of its tokens
        scores: list[float] = []
        handle = self.pipeline.add_request(0, openvino.Tensor(np.array([tokens], np.int64)), settings)
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
        while handle.can_read():
            (output,) = handle.read().values()
            scores += output.generated_log_probs
        return scores[1 : len(tokens)]  # of the first nothing is said


def read_part(handle) -> Part:
    tokens, finish = [], None
    while handle.can_read():
        (output,) = handle.read().values()
        tokens += output.generated_ids
        if output.finish_reason.name != "NONE":
            finish = output.finish_reason.name.lower()
    return tokens, finish


if __name__ == "__main__":
    answer_calls(Steps)
