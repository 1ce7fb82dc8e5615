"""ONNX Runtime computes the model that onnxruntime-genai's builder wrote. Rows of one batch have lengths of their own.

onnxruntime-genai's own Engine batches on GPUs only: on CPU a batch begins and ends together. Its models do not need it:
their attention takes the length of every row.
"""

import json
import math
import mmap
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime

from prompts import Prompts
from scheduler import Scheduler


class Engine(Scheduler):
    def __init__(self, config: dict, here: Path) -> None:
        serving = config["serving"]
        folder = here / serving["converted"]
        decoder = read_decoder(folder)
        rows = SessionRows(
            folder / decoder["filename"],
            head_size=decoder["head_size"],
            count=serving["max_concurrency"],
            context=serving["max_context"],
            threads=serving["threads"],
        )
        super().__init__(rows, Prompts(config).stop_tokens)


def read_decoder(folder: Path) -> dict:
    """What convert.py wrote of the model, if its attention can keep keys and values in place."""
    try:
        described = json.loads((folder / "genai_config.json").read_text(encoding="utf-8"))
    except OSError:
        sys.exit(f"{folder} holds no converted weights: make them with `make setup`, or python convert.py")
    if not described["search"]["past_present_share_buffer"]:
        sys.exit(
            f"{folder}: attention of this model ({described['model']['type']}) copies its keys and values in every "
            "step, which this engine does not do: take the engine transformers"
        )
    return described["model"]["decoder"]


def allocate_untouched(shape: tuple[int, ...]) -> np.ndarray:
    """Zeros that take memory as they are written to: of NumPy's huge pages a head's first token would take 2 MB."""
    return np.frombuffer(mmap.mmap(-1, 4 * math.prod(shape)), np.float32).reshape(shape)


class SessionRows:
    """Keys and values of every layer: (rows, heads, context, size), read and written in place by the graph."""

    def __init__(self, model: Path, head_size: int, count: int, context: int, threads: int) -> None:
        self.count, self.context = count, context
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        inputs = {value.name: value for value in self.session.get_inputs()}
        self.needs_positions = "position_ids" in inputs
        self.caches = {
            name: allocate_untouched((count, value.shape[1], context, head_size))
            for name, value in inputs.items()
            if name.startswith("past_key_values.")
        }
        vocabulary = next(value.shape[-1] for value in self.session.get_outputs() if value.name == "logits")
        self.logits = np.empty((count, vocabulary), np.float32)
        self.binding = self.session.io_binding()
        self.bound: tuple[int, int] | None = None

    def read_prompt(self, row: int, tokens: Sequence[int], past: int) -> np.ndarray:
        mask = np.ones((1, past + len(tokens)), np.int64)
        return self.compute(row, np.array([tokens], np.int64), mask, np.array([past]))[0]

    def step(self, tokens: Sequence[int], pasts: Sequence[int]) -> np.ndarray:
        lengths = np.array(pasts)
        mask = (np.arange(lengths.max() + 1) <= lengths[:, None]).astype(np.int64)
        return self.compute(0, np.array(tokens, np.int64)[:, None], mask, lengths)

    def compute(self, row: int, tokens: np.ndarray, mask: np.ndarray, pasts: np.ndarray) -> np.ndarray:
        """Logits of the last token of every row, from ``row`` on. Valid until the next call."""
        count = len(tokens)
        self.bind_caches(row, count)
        given = {"input_ids": tokens, "attention_mask": mask}
        if self.needs_positions:
            given["position_ids"] = pasts[:, None] + np.arange(tokens.shape[1])
        for name, values in given.items():
            self.binding.bind_input(name, "cpu", 0, np.int64, values.shape, values.ctypes.data)
        logits = self.logits[:count]
        self.binding.bind_output("logits", "cpu", 0, np.float32, (count, 1, logits.shape[1]), logits.ctypes.data)
        self.session.run_with_iobinding(self.binding)
        return logits

    def bind_caches(self, row: int, count: int) -> None:
        """The same memory is read as past and written as present."""
        if self.bound == (row, count):
            return
        for name, cache in self.caches.items():
            part = cache[row : row + count]
            place = ("cpu", 0, np.float32, part.shape, part.ctypes.data)
            self.binding.bind_input(name, *place)
            self.binding.bind_output(name.replace("past_key_values", "present"), *place)
        self.bound = (row, count)

    def move_row(self, source: int, target: int, length: int) -> None:
        for cache in self.caches.values():
            cache[target, :, :length] = cache[source, :, :length]
