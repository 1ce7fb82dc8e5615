"""MLX on Apple's GPU, with mlx-lm's continuous batching. The model's own files are read, and packed at the start."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from huggingface_hub import snapshot_download
from mlx_lm.generate import BatchGenerator
from mlx_lm.utils import load_model

from engine_thread import EngineThread, Request
from prompts import Prompts
from sampling import Sampling
from sources import find_source

READ_TOKENS = 512
"""Of a prompt at a time, or answers in flight would stand still behind a long one."""
PACKED_BITS = {"int8": 8, "int4": 4}
GROUP = 64
"""Packed weights that share a scale and an offset."""


class Engine(EngineThread):
    def __init__(self, config: dict, here: Path) -> None:
        serving = config["serving"]
        self.stop_tokens = frozenset(Prompts(config).stop_tokens)
        self.model = load_weights(config)
        self.batch = BatchGenerator(
            self.model,
            completion_batch_size=serving["max_concurrency"],
            prefill_batch_size=1,
            prefill_step_size=READ_TOKENS,
        )
        self.running: dict[int, Request] = {}
        """By mlx-lm's number."""
        self.left: dict[int, int] = {}
        """Tokens that each may still get."""
        super().__init__(serving["max_context"])

    @property
    def memory_gib(self) -> float:
        """Most that MLX has held: Metal's buffers are no resident memory of the process."""
        return max(super().memory_gib, mx.get_peak_memory() / (1 << 30))

    @property
    def is_busy(self) -> bool:
        return bool(self.running)

    def advance(self) -> None:
        while self.admit_next(self.insert):
            pass
        _, steps = self.batch.next()
        for step in steps:
            self.give(step.uid, step.token)

    def insert(self, request: Request) -> Request:
        most = request.sampling.max_new_tokens
        (number,) = self.batch.insert([request.prompt], [most], samplers=[make_sampler(request.sampling)])
        self.running[number], self.left[number] = request, most
        return request

    def give(self, number: int, token: int) -> None:
        request = self.running[number]
        self.left[number] -= 1
        ends = request.sampling.ends and token in self.stop_tokens
        finish = "stop" if ends else None if self.left[number] else "length"
        if finish:
            self.forget([number])
        request.receive([token], finish)

    def forget(self, numbers: list[int]) -> list[Request]:
        self.batch.remove(numbers)
        return [self.running.pop(number) for number in numbers if self.left.pop(number) >= 0]

    def score(self, tokens: Sequence[int]) -> list[float]:
        """Log-probabilities of all but the first, each behind those before it."""
        logits = self.model(mx.array([tokens[:-1]]))[0].astype(mx.float32)
        scores = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        return mx.take_along_axis(scores, mx.array(tokens[1:])[:, None], axis=-1)[:, 0].tolist()

    def drop(self, numbers: set[int]) -> list[Request]:
        return self.forget([number for number, request in self.running.items() if request.number in numbers])

    def drop_all(self) -> list[Request]:
        return self.forget(list(self.running))

    def work(self) -> None:
        super().work()
        mx.clear_streams()  # of this thread: those of one that has ended abort the interpreter's end


def load_weights(config: dict) -> nn.Module:
    source, weights = find_source(config, "model"), config["serving"]["weights"]
    folder = source if isinstance(source, Path) else fetch(source, config.get("revision"))
    model, _ = load_model(folder, model_config=spell_rotary_settings(folder))
    if weights in PACKED_BITS:
        nn.quantize(model, group_size=GROUP, bits=PACKED_BITS[weights])
    else:
        model.set_dtype(getattr(mx, weights))
    mx.eval(model.parameters())
    return model


def fetch(name: str, revision: str | None) -> Path:
    """Of the hub what load_model reads: many keep the same weights in other forms beside it, as large again."""
    return Path(snapshot_download(name, revision=revision, allow_patterns=["*.json", "model*.safetensors"]))


def spell_rotary_settings(folder: Path) -> dict:
    """As mlx-lm looks for them: under Transformers 5's name it finds none, and takes defaults without a word."""
    rotary = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("rope_parameters") or {}
    if "rope_theta" not in rotary:
        return {}
    return {"rope_theta": rotary["rope_theta"], "rope_scaling": None if rotary["rope_type"] == "default" else rotary}


def make_sampler(sampling: Sampling) -> Callable[[mx.array], mx.array]:
    """Of logarithms of probabilities. A seed gives the same draws whoever else is in the batch."""
    if sampling.temperature == 0:
        return lambda scores: mx.argmax(scores, axis=-1)
    keys = [mx.random.key(sampling.seed)] if sampling.seed is not None else None

    def draw(scores: mx.array) -> mx.array:
        scores = scores / sampling.temperature
        if sampling.top_p < 1:
            order = mx.argsort(-scores, axis=-1)
            likeliest = mx.take_along_axis(mx.softmax(scores, axis=-1), order, axis=-1)
            before = mx.cumsum(likeliest, axis=-1) - likeliest
            ranked = mx.where(before < sampling.top_p, mx.take_along_axis(scores, order, axis=-1), -mx.inf)
            scores = mx.put_along_axis(scores, order, ranked, axis=-1)
        if keys is None:
            return mx.random.categorical(scores)
        keys[0], key = mx.random.split(keys[0])
        return mx.random.categorical(scores, key=key)

    return draw
