"""llama.cpp's own server inside this process: its slots join and leave one batch.

It is asked with tokens and streams text. convert.py made the text of each token its number, so that tokens come back.
"""

import queue
import secrets
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import xllamacpp
from transformers import AutoTokenizer

from engine_thread import EngineThread, Request
from prompts import Prompts
from sampling import Sampling
from sources import find_source

READ_TOKENS = 512
"""Of prompts in one step, or answers in flight would stand still behind a long one."""
SLOT_TOKENS = 256
"""The context of a slot is a multiple of them."""
ALWAYS = 1e6
"""Added to a logit, it makes its token the answer."""
SEEDS = (1 << 32) - 1
"""llama.cpp keeps 32 bits of a seed, and this one is its word for another seed each time."""
LOOK_SECONDS = 0.01
"""While all slots read prompts, after so long it is seen who else came or went."""


class Engine(EngineThread):
    def __init__(self, config: dict, here: Path) -> None:
        serving = config["serving"]
        model = here / serving["converted"] / "model.gguf"
        if not model.is_file():
            sys.exit(f"{model} is not here: make it with `make setup`, or python convert.py")
        prompts = Prompts(config)
        self.slots, self.stop_tokens = serving["max_concurrency"], frozenset(prompts.stop_tokens)
        if config.get("draft_model"):
            check_vocabulary(config, prompts)
        self.server = start_server(model, serving)
        self.running: dict[int, Answer] = {}
        self.streams: list[threading.Thread] = []
        self.events: queue.SimpleQueue[tuple[int, dict]] = queue.SimpleQueue()
        super().__init__(serving["max_context"])

    @property
    def is_busy(self) -> bool:
        return bool(self.running)

    def advance(self) -> None:
        # who was left goes on in the server up to its next event: what comes meanwhile waits here, or it would read the
        # prompts of all who have gone one after the other
        self.streams = [stream for stream in self.streams if stream.is_alive()]
        while len(self.streams) < self.slots and self.admit_next(self.begin):
            pass
        try:
            number, event = self.events.get(timeout=LOOK_SECONDS)
        except queue.Empty:
            return
        if number in self.running:
            self.give(number, event)

    def begin(self, request: Request) -> "Answer":
        stream = threading.Thread(target=self.stream, args=(request,), daemon=True)
        answer = self.running[request.number] = Answer(request)
        try:
            stream.start()
        except RuntimeError:  # threads are limited
            del self.running[request.number]
            raise
        self.streams.append(stream)
        return answer

    def stream(self, request: Request) -> None:
        """In a thread of its own. What follows from a request that is not running any more ends it in the server."""

        def take(event: dict) -> bool:
            self.events.put((request.number, event))
            return request.number not in self.running

        try:
            self.server.handle_completions(describe(request.prompt, request.sampling), take)
        except Exception as error:  # whatever the library raises: who asked is told
            self.events.put((request.number, {"error": {"message": str(error)}}))

    def give(self, number: int, event: dict) -> None:
        answer = self.running[number]
        tokens, finish = answer.read(event, self.stop_tokens)
        if finish:
            del self.running[number]
        if tokens or finish:
            answer.request.receive(tokens, finish)

    def score(self, tokens: Sequence[int]) -> list[float]:
        """Log-probabilities of all but the first, each behind those before it. llama.cpp's server says them of
        answers alone: each token is made the answer, which does not change what is said of it."""
        scores: list[float] = []
        for place in range(1, len(tokens)):
            token, events = tokens[place], []
            one = describe(list(tokens[:place]), Sampling(1, ends=False))
            one |= {"logit_bias": [[token, ALWAYS]], "logprobs": 1, "cache_prompt": True, "stream": False}
            self.server.handle_completions(one, events.append)
            (event,) = events
            (scored,) = event["choices"][0]["logprobs"]["content"]
            if int(scored["token"]) != token:
                raise RuntimeError(f"llama.cpp was to answer with token {token} and did with {scored['token']}")
            scores.append(scored["logprob"])
        return scores

    def drop(self, numbers: set[int]) -> list[Request]:
        return [self.running.pop(number).request for number in numbers & self.running.keys()]

    def drop_all(self) -> list[Request]:
        return self.drop(set(self.running))

    def close(self) -> None:
        super().close()
        for stream in self.streams:
            stream.join()


class Answer:
    """A request whose tokens are on their way."""

    def __init__(self, request: Request) -> None:
        self.request, self.count = request, 0

    def read(self, event: dict, stop_tokens: frozenset[int]) -> tuple[list[int], str | None]:
        """New tokens of an event of the server, and why they are the last."""
        if "error" in event:
            return [], f"error: {event['error']['message']}"
        choice, tokens = event["choices"][0], []
        for token in map(int, choice["text"].split()):
            tokens.append(token)
            self.count += 1
            if self.request.sampling.ends and token in stop_tokens:
                return tokens, "stop"
            if self.count == self.request.sampling.max_new_tokens:
                return tokens, "length"
        return tokens, f"error: llama.cpp ended the answer ({choice['finish_reason']})" if choice[
            "finish_reason"
        ] else None


def check_vocabulary(config: dict, prompts: Prompts) -> None:
    """llama.cpp is handed numbers, and would take any small model with as many of them."""
    source, revision = find_source(config, "draft_model"), config.get("draft_revision")
    own = AutoTokenizer.from_pretrained(source, revision=revision, trust_remote_code=False).get_vocab()
    if own != prompts.tokenizer.get_vocab():
        sys.exit(f"config.yaml, draft_model: {source} has another vocabulary than the model, and cannot propose")


def start_server(model: Path, serving: dict) -> xllamacpp.Server:
    settings = xllamacpp.CommonParams()
    settings.model.path = str(model)
    settings.n_parallel = serving["max_concurrency"]
    settings.n_ctx = settings.n_parallel * (-(-serving["max_context"] // SLOT_TOKENS) + 1) * SLOT_TOKENS
    settings.n_batch = settings.n_ubatch = max(READ_TOKENS, settings.n_parallel)
    if threads := serving.get("threads"):  # of a CPU; on a Mac all layers are Metal's (n_gpu_layers)
        settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = threads
    if serving["weights"] == "float32":  # as exact as its weights; else 16 bits for keys and values
        settings.cache_type_k = settings.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        settings.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    if proposed := serving.get("proposed_tokens"):
        add_proposals(settings, model.parent / "draft_model" / "model.gguf", proposed)
    settings.fit_params = False  # the plan has done so
    settings.cache_ram_mib = 0  # it would keep old prompts, up to 8 GiB
    settings.hostnames, settings.port, settings.api_keys = ["127.0.0.1"], 0, [secrets.token_hex()]  # nobody's but ours
    settings.verbosity = -1
    return xllamacpp.Server(settings)


def add_proposals(settings: xllamacpp.CommonParams, model: Path, count: int) -> None:
    """As many tokens at a time of the small model, however sure it is."""
    settings.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
    draft = settings.speculative.draft
    draft.mparams.path = str(model)
    draft.n_max, draft.n_min, draft.p_min = count, 0, 0.0
    draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = settings.cpuparams.n_threads
    draft.cache_type_k, draft.cache_type_v = settings.cache_type_k, settings.cache_type_v


def describe(prompt: list[int], sampling: Sampling) -> dict:
    request = {
        "prompt": prompt,
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "samplers": ["temperature", "top_p"],
        "stream": True,
        "return_progress": True,  # an event for every part of a prompt: it can be cancelled there
        "cache_prompt": False,
    }
    return request if sampling.seed is None else request | {"seed": sampling.seed % SEEDS}
