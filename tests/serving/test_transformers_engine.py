"""Transformers as an engine: several answers at once are those of generate, and each is told how it ends."""

from __future__ import annotations

import json
import queue
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

TEXTS = [
    "Once upon a time",
    "The history of Rome begins with",
    "def fibonacci(n):\n",
    "Water boils at",
    "My",
    "In 1969",
]
LIMITS = {"max_context": 256, "max_concurrency": 4, "threads": 1, "weights": "float32", "cache": "static"}


@pytest.fixture
def modules(load, monkeypatch):
    """The engine of a project, with the model that a test gives it."""
    for leaf, name in (("machine/cpu", "machine"), ("sources", "sources"), ("stop_tokens", "stop_tokens")):
        load(leaf, name)
    for name in ("sampling", "prompts", "decoding", "engine_thread", "scheduler", "direct_step", "slots"):
        load(f"serving/{name}", name)
    load("serving/proposals/prompt_lookup", "proposals")
    given = SimpleNamespace(load_model=load_plain)
    monkeypatch.setitem(sys.modules, "model", given)
    return load("engines/transformers", "engine")


def load_plain(config: dict):
    return AutoModelForCausalLM.from_pretrained(config["model"], dtype=torch.float32).eval()


def make_tiny(folder: Path, model: Path, kind=LlamaForCausalLM, config=LlamaConfig, **more) -> Path:
    """Random weights, with SmolLM2's tokenizer."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    made = kind(config(vocab_size=49152, num_key_value_heads=2, initializer_range=0.5, eos_token_id=2, **sizes, **more))
    made.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(model / name, folder / name)
    return folder


@pytest.fixture
def tiny(model, tmp_path):
    return make_tiny(tmp_path / "tiny", model)


def make_engine(modules, model: Path, **serving):
    engine = modules.Engine({"model": str(model), "serving": LIMITS | serving}, model)
    return engine


def encode(modules, model: Path) -> list[list[int]]:
    prompts = modules.Prompts({"model": str(model)})
    return [prompts.encode_text(text) for text in TEXTS]


def generate_plainly(model: Path, prompts: list[list[int]], tokens: int, **more) -> list[list[int]]:
    plain = load_plain({"model": str(model)})
    answers = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        output = plain.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, **more
        )
        answers.append(output[0, len(prompt) :].tolist())
    return answers


class Inbox:
    """What one request receives."""

    def __init__(self, engine, prompt: list[int], sampling) -> None:
        self.events: queue.Queue = queue.Queue()
        self.number = engine.submit(prompt, sampling, lambda tokens, finish: self.events.put((tokens, finish)))

    def read(self) -> tuple[list[int], str]:
        tokens, finish = [], None
        while finish is None:
            new, finish = self.events.get(timeout=120)
            tokens += new
        return tokens, finish


ANSWERS: dict[int, list[list[int]]] = {}
"""of the real model to TEXTS, by their most tokens: what every engine is compared with is computed once"""
REAL = pytest.mark.parametrize("tokens", [pytest.param(12, marks=pytest.mark.core), 64])


def generate_real(model: Path, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    if tokens not in ANSWERS:
        ANSWERS[tokens] = generate_plainly(model, prompts, tokens)
    return ANSWERS[tokens]


@pytest.mark.slow
@REAL
@pytest.mark.parametrize("serving", [{}, {"step": "direct"}, {"proposed_tokens": 4}], ids=["plain", "direct", "lookup"])
def test_greedy_tokens_of_a_real_model_are_those_of_generate(modules, model, serving, tokens):
    """In float32, by batches whose rows end and are taken by others, and one by one."""
    prompts = encode(modules, model)
    expected = generate_real(model, prompts, tokens)
    engine = make_engine(modules, model, **serving)
    samplings = [modules.Sampling(tokens)] * len(prompts)
    assert engine.generate(prompts, samplings) == expected
    assert [
        engine.generate([prompt], [sampling])[0] for prompt, sampling in zip(prompts, samplings, strict=True)
    ] == expected
    inboxes = [Inbox(engine, prompt, sampling) for prompt, sampling in zip(prompts, samplings, strict=True)]
    assert [inbox.read()[0] for inbox in inboxes] == expected
    engine.close()


@pytest.mark.slow
def test_the_compiled_step_gives_the_same_tokens(modules, model):
    prompts = encode(modules, model)
    engine = make_engine(modules, model, compile="default")
    assert engine.generate(prompts, [modules.Sampling(64)] * len(prompts)) == generate_real(model, prompts, 64)


@pytest.mark.parametrize("serving", [{}, {"step": "direct"}], ids=["plain", "direct"])
def test_rows_of_many_lengths_are_those_of_generate(modules, tiny, serving):
    """Prompts longer than a growth of the view, rows that end early and are given to others, in every order."""
    draw = torch.Generator().manual_seed(1)
    prompts = [torch.randint(20, 40000, (n,), generator=draw).tolist() for n in (3, 130, 60, 64, 1, 65, 127, 20, 5)]
    lengths = [40, 3, 70, 1, 64, 30, 2, 50, 9]
    engine = make_engine(modules, tiny, **serving)
    answers = engine.generate(prompts, [modules.Sampling(n, ends=False) for n in lengths])
    for prompt, length, answer in zip(prompts, lengths, answers, strict=True):
        assert answer == generate_plainly(tiny, [prompt], length, min_new_tokens=length, suppress_tokens=None)[0] or (
            2 in answer  # generate would not choose the end
        )
    assert answers == engine.generate(prompts, [modules.Sampling(n, ends=False) for n in lengths])


def test_products_in_bf16_are_packed_and_score_alike(modules, tiny, monkeypatch):
    """A direct step with weights in oneDNN's layout, beside the whole forward pass with plain ones."""
    monkeypatch.setattr(modules, "load_model", lambda config: load_plain(config).to(torch.bfloat16))
    text = [3, 500, 41, 7, 1000, 20000, 12]
    plain = make_engine(modules, tiny, weights="bfloat16")
    direct = make_engine(modules, tiny, weights="bfloat16", step="direct")
    assert (type(plain.decoder).__name__, type(direct.decoder).__name__) == ("Together", "Direct")
    packed = [type(module).__name__ for module in direct.decoder.model.modules()].count("PackedLinear")
    assert packed == (15 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else 0)
    spread = torch.tensor(plain.score(text)).std()
    differences = [abs(a - b) for a, b in zip(plain.score(text), direct.score(text), strict=True)]
    assert max(differences) < 0.1 * spread


def test_looking_up_changes_no_token(modules, tiny):
    """A model that repeats itself, so that what is proposed is often right."""
    prompts = [[5, 6, 7, 8, 9] * 6, [100, 200, 300]]
    samplings = [modules.Sampling(100, ends=False)]
    plain, looking = make_engine(modules, tiny), make_engine(modules, tiny, proposed_tokens=5)
    for prompt in prompts:
        assert plain.generate([prompt], samplings) == looking.generate([prompt], samplings)


@pytest.mark.parametrize("window", [16, 512])
def test_layers_that_see_a_window(modules, model, tmp_path, window, capsys):
    """Longer answers than the window are computed each by itself, shorter ones together; both are generate's."""
    folder = make_tiny(tmp_path / "w", model, MistralForCausalLM, MistralConfig, sliding_window=window)
    prompts = [[7, 8, 9], list(range(30, 70)), [500]]
    engine = make_engine(modules, folder)
    assert type(engine.decoder).__name__ == ("Together" if window > 256 else "Apart")
    assert engine.generate(prompts, [modules.Sampling(40)] * 3) == generate_plainly(folder, prompts, 40)
    assert ("by itself" in capsys.readouterr().err) == (window < 256)


def test_each_request_is_told_how_it_ends(modules, tiny):
    engine = make_engine(modules, tiny, max_concurrency=2)
    long, short = modules.Sampling(200, ends=False), modules.Sampling(5, ends=False)
    running = [Inbox(engine, [3, 4], long), Inbox(engine, [5], long)]
    assert running[0].events.get(timeout=60)[1] is None
    waiting = [Inbox(engine, [6], short), Inbox(engine, [7], short)]
    for inbox in (waiting[1], running[0]):
        engine.cancel(inbox.number)
    assert waiting[1].read() == ([], "cancelled") and running[0].read()[1] == "cancelled"
    tokens, finish = waiting[0].read()
    assert (len(tokens), finish) == (5, "length")
    engine.cancel(waiting[0].number)  # it has ended: passed over
    tokens, finish = running[1].read()
    assert (len(tokens), finish) == (200, "length")
    last = Inbox(engine, [3], modules.Sampling(250, ends=False))
    engine.close()
    assert last.read()[1] in ("cancelled", "length")
    with pytest.raises(RuntimeError, match="closed"):
        engine.submit([1], short, print)


def test_a_failure_is_told_and_the_next_request_is_answered(modules, tiny, monkeypatch, capsys):
    engine = make_engine(modules, tiny)
    read = engine.decoder.read_prompt

    def fail_once(row, tokens, past):
        monkeypatch.setattr(engine.decoder, "read_prompt", read)
        raise torch.OutOfMemoryError("no memory left")

    monkeypatch.setattr(engine.decoder, "read_prompt", fail_once)
    assert Inbox(engine, [3, 4], modules.Sampling(4)).read() == ([], "error: OutOfMemoryError: no memory left")
    assert len(Inbox(engine, [3, 4], modules.Sampling(4, ends=False)).read()[0]) == 4
    engine.close()
    assert "no memory left" in capsys.readouterr().err


def test_what_followed_the_same_words_is_proposed(load):
    for leaf, name in (("sources", "sources"), ("stop_tokens", "stop_tokens"), ("serving/prompts", "prompts")):
        load(leaf, name)
    propose = load("serving/proposals/prompt_lookup", "proposals").Proposer({}, None, None).propose
    assert propose([1, 2, 3, 9, 9, 1, 2, 3], 3) == [9, 9, 1]
    assert propose([1, 2, 3], 3) == [] == propose([4], 1)


def make_drafted(load, modules, model: Path, draft: Path):
    """An engine whose small model counts how much of what it says is taken."""
    load("loaded_weights")
    modules.Proposer = load("serving/proposals/draft_model", "proposals").Proposer
    serving = LIMITS | {"proposed_tokens": 4}
    return modules.Engine({"model": str(model), "draft_model": str(draft), "serving": serving}, model)


def count_passes(engine) -> list[int]:
    """Tokens of each pass that checks."""
    passes: list[int] = []
    check = engine.decoder.check

    def count(tokens, past):
        passes.append(len(tokens))
        return check(tokens, past)

    engine.decoder.check = count
    return passes


def test_a_small_model_changes_no_token(load, modules, tiny, tmp_path):
    """One that guesses wrongly, over requests that share beginnings and that do not, and one that is the model itself."""
    other = make_other(tmp_path / "other", tiny)
    prompts = [[5, 6, 7, 8, 9] * 6, [5, 6, 7, 100, 200, 300], [100, 200, 300], [5, 6, 7, 8, 9] * 6, [11]]
    expected = [generate_plainly(tiny, [prompt], 40)[0] for prompt in prompts]
    for draft, most in ((other, 41), (tiny, 10)):
        engine = make_drafted(load, modules, tiny, draft)
        passes = count_passes(engine)
        for prompt, answer in zip(prompts, expected, strict=True):
            passes.clear()
            assert engine.generate([prompt], [modules.Sampling(40)]) == [answer]
            assert len(passes) <= most
        assert engine.generate(prompts, [modules.Sampling(40)] * len(prompts)) == expected  # several: none is proposed
        engine.close()


def make_other(folder: Path, like: Path) -> Path:
    """Other weights, of the same tokenizer and sizes."""
    shutil.copytree(like, folder)
    torch.manual_seed(7)
    changed = load_plain({"model": str(like)})
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    changed.save_pretrained(folder)
    return folder


def test_another_vocabulary_ends_the_server(load, modules, tiny, tmp_path):
    other = make_other(tmp_path / "other", tiny)
    settings = json.loads((other / "tokenizer.json").read_text())
    settings["added_tokens"].append(settings["added_tokens"][0] | {"content": "<|another|>", "id": 49152})
    (other / "tokenizer.json").write_text(json.dumps(settings))
    with pytest.raises(SystemExit, match="another vocabulary than the model"):
        make_drafted(load, modules, tiny, other)


@pytest.mark.slow
@REAL
def test_a_small_model_changes_no_token_of_a_real_one(load, modules, model, tmp_path, tokens):
    """SmolLM2 with its first ten layers as the small one, which guesses some, in float32."""
    draft = shutil.copytree(model, tmp_path / "draft")
    small = load_plain({"model": str(model)})
    small.model.layers = small.model.layers[:10]
    small.config.num_hidden_layers = 10
    small.save_pretrained(draft)
    prompts = encode(modules, model)
    expected = generate_real(model, prompts, tokens)
    engine = make_drafted(load, modules, model, draft)
    passes = count_passes(engine)
    assert [engine.generate([prompt], [modules.Sampling(tokens)])[0] for prompt in prompts] == expected
    assert passes
    engine.close()
