"""Transformers as the engine: several answers are computed together, each joins and leaves between two tokens."""

import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import torch

from direct_step import pack_products
from machine import peak_memory
from model import load_model
from prompts import Prompts
from proposals import Proposer
from sampling import Sampling
from scheduler import Scheduler, Sequenced
from slots import EXACT, ROUNDED, Decoder, Together, make_decoder


def load_models(config: dict, prompts: Prompts) -> tuple[Decoder, Proposer]:
    serving, model = config["serving"], load_model(config)
    proposer = Proposer(config, prompts, model)
    tolerance = EXACT if serving["weights"] == "float32" else ROUNDED
    rows, length = serving["max_concurrency"], serving["max_context"]
    if direct := serving.get("step") == "direct":
        pack_products(model)
    return make_decoder(model, serving["cache"], rows, length, tolerance, direct), proposer


def load_apart(load: Callable[[], tuple[Decoder, Proposer]]) -> tuple[Decoder, Proposer]:
    """In a thread that ends. OpenMP keeps a team for each thread that computes, and where those are more threads than
    CPUs, all of them sleep at every barrier: half of the tokens."""
    loaded: Future[tuple[Decoder, Proposer]] = Future()

    def work() -> None:
        try:
            loaded.set_result(load())
        except BaseException as error:  # told to whoever asked, a SystemExit too
            loaded.set_exception(error)

    threading.Thread(target=work, name="loading", daemon=True).start()
    return loaded.result()


class Engine(Scheduler):
    """The model of config.yaml, loaded; tokens in, tokens out."""

    fatal = (torch.AcceleratorError,)

    def __init__(self, config: dict, here: Path) -> None:
        serving = config["serving"]
        if "threads" in serving:
            torch.set_num_threads(serving["threads"])
        prompts = Prompts(config)
        self.decoder, self.proposer = load_apart(lambda: load_models(config, prompts))
        self.proposed_tokens = serving.get("proposed_tokens", 0)
        super().__init__(self.decoder, prompts.stop_tokens)
        if "compile" in serving:
            self.compile(serving["compile"])

    def compile(self, mode: str) -> None:
        """Before anyone waits for it: minutes, where nothing of it is cached. Transformers compiles for GPUs alone."""
        if isinstance(self.decoder, Together):
            self.decoder.compile(mode)
            self.generate([[0, 0]], [Sampling(3, ends=False)])
        else:
            print("serving.compile: a model whose answers are computed so is not compiled", file=sys.stderr)

    @torch.inference_mode()
    def work(self) -> None:
        super().work()

    @torch.inference_mode()
    def score(self, tokens: Sequence[int]) -> list[float]:
        return super().score(tokens)

    def count_readable(self, left: int) -> int:
        """A prompt whole where no answer waits for it: in parts its kernels are slower."""
        return left if self.decoder.reads_parts and self.active else sys.maxsize

    def as_array(self, logits: torch.Tensor) -> np.ndarray:
        return logits.float().cpu().numpy()

    def add_tokens(self) -> None:
        alone = len(self.active) == 1 and self.active[0].sampling.takes_likeliest
        if self.proposed_tokens and alone and isinstance(self.decoder, Together):
            self.check_proposal(self.active[0], self.decoder)
        else:
            super().add_tokens()

    def check_proposal(self, sequence: Sequenced, decoder: Together) -> None:
        """What is proposed is checked in one pass, and kept as far as the model would choose it."""
        left = sequence.sampling.max_new_tokens - sequence.added - 1
        count = min(self.proposed_tokens, left)
        proposed = self.proposer.propose(sequence.tokens, count) if count else []
        chosen = decoder.check([sequence.tokens[-1], *proposed], sequence.past).argmax(-1).tolist()
        agreed = next((n for n, token in enumerate(proposed) if token != chosen[n]), len(proposed))
        sequence.past += agreed + 1
        self.add(sequence, chosen[: agreed + 1])

    @property
    def memory_gib(self) -> float:
        return peak_memory()["peak_memory_gib"]
