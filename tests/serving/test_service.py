"""What a server asks of its engine, and refuses before it does: the engine is a stand-in."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("transformers")
CONTEXT = 64
QUESTION = {"model": "m", "prompt": "hello", "max_tokens": 2}


class Engine:
    """One that draws all its numbers from a seed of its own, as CTranslate2 does."""

    applied = frozenset()
    draws_by_seed = False


class Prompts:
    """Of one token per character, and none that is longer."""

    known_tokens = 256

    def __init__(self) -> None:
        self.encoded: list[str] = []

    def may_fit(self, texts, most_tokens: int) -> bool:
        return sum(map(len, texts)) <= most_tokens

    def encode_text(self, text: str) -> list[int]:
        self.encoded.append(text)
        return [ord(letter) for letter in text]


@pytest.fixture
def service(load, monkeypatch, tmp_path):
    for name in ("fields", "sources", "stop_tokens", "template_limits"):
        load(name)
    for name in ("sampling", "openai_requests", "server_metrics", "prompts", "generation_defaults"):
        load(f"serving/{name}", name)
    monkeypatch.setitem(sys.modules, "engine", SimpleNamespace(Engine=Engine))
    leaf = load("serving/service", "service")
    serving = {"name": "m", "max_concurrency": 4, "max_waiting": 8, "max_context": CONTEXT, "max_new_tokens": 8}
    made = leaf.Service({"serving": serving}, tmp_path)
    made.prompts, made.defaults = Prompts(), {"temperature": 1.0, "top_p": 1.0}
    yield made
    made.tokenizing.shutdown()


def prepare(service, **changed):
    requests = sys.modules["openai_requests"]
    return asyncio.run(service.prepare(requests.read_request(QUESTION | changed, chat=False, name="m")))


def test_a_seed_that_the_engine_does_not_keep_is_refused(service):
    """CTranslate2's log alone said so: two answers to one seed differed."""
    with pytest.raises(sys.modules["openai_requests"].Refused, match="seed is not supported") as refused:
        prepare(service, seed=7)
    assert (refused.value.status, refused.value.field) == (400, "seed")
    _, sampling = prepare(service, seed=7, temperature=0)
    assert sampling.takes_likeliest
    Engine.draws_by_seed = True
    try:
        assert prepare(service, seed=7)[1].seed == 7
    finally:
        Engine.draws_by_seed = False


def test_a_text_that_cannot_fit_is_refused_before_it_is_read(service):
    """A tokenizer took seconds of each megabyte, and those behind it waited."""
    with pytest.raises(sys.modules["openai_requests"].Refused, match=f"maximum context length is {CONTEXT}") as refused:
        prepare(service, prompt="a" * 100_000)
    assert (refused.value.status, refused.value.code) == (400, "context_length_exceeded")
    assert not service.prompts.encoded
    tokens, _ = prepare(service, prompt="a" * (CONTEXT - 2))
    assert len(tokens) == CONTEXT - 2
