"""Models of the hub, fetched for real from a hub on localhost: what is read, what each failure says, what is kept."""

from __future__ import annotations

import json
import socket
import threading
import time

import pytest
from local_hub import serve_hub

from generator import pipeline
from generator.case.request import Request
from generator.emit import render
from generator.emit.document import build_document
from generator.emit.plan_json import to_json
from generator.emit.sources import link_sources, place_sources
from generator.errors import SourceError
from generator.inputs import hub_connection, hub_requests
from generator.inputs.model_files import read_model

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
}
FILES = {
    "config.json": json.dumps(CONFIG),
    "model.safetensors": b"weights, which no plan fetches",
    "tokenizer.json": "{}",
    "tokenizer_config.json": "{}",
    "README.md": "# a model",
}
CHAT = '{"messages": [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Yes."}]}\n'


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """huggingface_hub reads its variables when it is imported: what it made of them is set instead."""
    with serve_hub() as server:
        constants = "huggingface_hub.constants."
        monkeypatch.setattr(constants + "ENDPOINT", server.url)
        monkeypatch.setattr(
            constants + "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants + "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants + "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setattr(hub_requests, "HUB_SECONDS", 5)
        yield server
        server.delay = 0  # a question that was given up still holds the address of this hub
        for thread in [t for t in threading.enumerate() if t.name == hub_requests.THREAD]:
            thread.join(timeout=10)


def add_model(hub, name="owner/model", kind="models", files=None, access=None, **more):
    return hub.add(
        kind, name, {n: c for n, c in (FILES | (files or {}) | more).items() if c is not None}, **(access or {})
    )


def read(name="owner/model", **more):
    return read_model(name, **{"offline": False} | more)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, False),
        ({"tokenizer_config.json": '{"chat_template": "x"}'}, True),
        ({"tokenizer_config.json": '{"chat_template": [{"name": "default", "template": "x"}]}'}, True),
        ({"chat_template.jinja": "x"}, True),
        ({"additional_chat_templates/tool_use.jinja": "x"}, True),
        ({"chat_template.json": '{"chat_template": "x"}'}, None),
        ({"tokenizer.json": None, "tekken.json": "{}"}, None),
        ({"tokenizer_config.json": None}, False),
    ],
    ids=lambda value: "+".join(value) or "none" if isinstance(value, dict) else None,
)
def test_the_chat_template_is_read_with_the_config(hub, files, expected):
    commit = add_model(hub, files=files).head
    source = read()
    assert source.has_chat_template is expected
    assert (source.revision, source.has_weights, source.has_tokenizer, source.notes) == (commit, True, True, ())
    asked = len(hub.requests)
    again = read(offline=True)
    assert len(hub.requests) == asked, "what is offline asks nobody"
    assert again.revision == commit
    assert again.has_chat_template is (expected or None), (
        "what lacks a template is known only where all files are listed"
    )


def test_a_tokenizer_of_its_own_is_pinned_to_a_commit(hub, tmp_path):
    add_model(hub, files={"tokenizer.json": None})
    commit = add_model(hub, "owner/words").head
    data = tmp_path / "d.txt"
    data.write_text("a line\n" * 400)
    given = {"model": "owner/model", "tokenizer": "owner/words", "data": str(data), "seq_len": 64, "global_batch": 2}
    document = to_json(build_document(pipeline.plan_request(Request(hardware="cpu:2", **given)), name="p"))
    assert document["config"]["tokenizer_revision"] == commit
    render.render(document, tmp_path / "p")
    for script in ("train.py", "data.py"):
        text = (tmp_path / "p" / script).read_text()
        assert 'revision=CONFIG["tokenizer_revision"]' in text or 'revision=config["tokenizer_revision"]' in text


def test_no_weights_and_no_vocabulary_are_fetched(hub):
    add_model(hub)
    read()
    assert not [path for path in hub.paths() if path.endswith((".safetensors", "tokenizer.json")) or "/lfs/" in path]


def test_what_is_not_there_is_seen_before_the_project_runs(hub):
    add_model(hub, "owner/bare", files={"model.safetensors": None, "tokenizer.json": None})
    source = read("owner/bare")
    assert not source.has_weights and not source.has_tokenizer and "random weights" in source.notes[0]
    add_model(hub, "owner/pickles", files={"model.safetensors": None, "pytorch_model.bin": b"x"})
    with pytest.raises(SourceError, match="pickled weights only"):
        read("owner/pickles")
    for name in ("model-00001-of-00002.safetensors", "consolidated.safetensors", "model.fp16.safetensors"):
        add_model(hub, f"owner/{name[:-12]}", files={"model.safetensors": None, name: b"x"})
        with pytest.raises(SourceError, match=r"neither model\.safetensors nor"):
            read(f"owner/{name[:-12]}")
    add_model(hub, "owner/gguf", files={"config.json": None, "model-q4.gguf": b"GGUF"})
    with pytest.raises(SourceError, match="GGUF files only"):
        read("owner/gguf")


def test_the_commit_that_was_read_is_pinned_when_the_model_moves(hub):
    repo = add_model(hub)
    first = read().revision
    repo.commit(
        {n: c.encode() if isinstance(c, str) else c for n, c in (FILES | {"chat_template.jinja": "new"}).items()}
    )
    assert read().revision == first == next(iter(repo.commits)) != repo.head
    assert read().has_chat_template is False, "of the pinned commit, not of the newest"


@pytest.mark.parametrize(
    ("access", "token", "words"),
    [
        ({"gated": "hf_right"}, None, ("gated, and no token was given", "/owner/model", "HF_TOKEN")),
        ({"gated": "hf_right"}, "hf_wrong", ("gated, and your token has no access", "ask for access")),
        ({"token": "hf_right"}, None, ("no model owner/model, or hides it", "HF_TOKEN")),
        ({"token": "hf_right"}, "hf_wrong", ("no model owner/model, or hides it",)),
        (None, None, ("no model owner/model, or hides it", "check the name")),
    ],
    ids=["gated", "gated for me", "private", "private to others", "missing"],
)
def test_access(hub, monkeypatch, access, token, words):
    if access is not None:
        add_model(hub, access=access)
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(SourceError) as refused:
        read()
    lines = str(refused.value).splitlines()
    assert len(lines) == 2 and all(word in str(refused.value) for word in words), lines
    assert "hf_" not in str(refused.value)
    if access:
        monkeypatch.setenv("HF_TOKEN", "hf_right")
        assert read().has_weights


def test_a_hub_that_takes_no_more_requests(hub):
    add_model(hub)
    hub.limited = True
    started = time.monotonic()
    with pytest.raises(SourceError, match=r"no more requests.*\n.*wait 55 s.*HF_TOKEN"):
        read()
    assert time.monotonic() - started < 2, "it is not waited for"


def test_a_slow_hub_is_given_up(hub, monkeypatch):
    add_model(hub)
    hub.delay = 3
    monkeypatch.setattr(hub_requests, "HUB_SECONDS", 0.3)
    started = time.monotonic()
    with pytest.raises(SourceError, match=r"did not answer in 0\.3 s"):
        read()
    assert time.monotonic() - started < 2


def test_a_download_that_is_cut_is_taken_up_again(hub, monkeypatch):
    add_model(hub)
    hub.cut = 20
    assert json.loads(read().config)["vocab_size"] == 1000
    assert "/owner/model/resolve/main/config.json" in hub.cut_paths


def set_endpoint(monkeypatch, url: str) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}"
    )


@pytest.fixture
def silent_port():
    """A port on which connections are neither taken nor refused: its queue is full."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        waiting = []
        for _ in range(4):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(server.getsockname())
            waiting.append(client)
        yield server.getsockname()[1]
        for client in waiting:
            client.close()


@pytest.mark.parametrize("way", ["refused", "silent", "no such name"])
def test_no_hub_at_all(hub, monkeypatch, silent_port, way):
    """Seen at once, however it is that nothing answers; what is in the catalogue is sized by it."""
    urls = {
        "refused": "http://127.0.0.1:9",
        "silent": f"http://127.0.0.1:{silent_port}",
        "no such name": "http://hub.invalid",
    }
    set_endpoint(monkeypatch, urls[way])
    monkeypatch.setattr(hub_connection, "CONNECT_SECONDS", 0.5)
    started = time.monotonic()
    with pytest.raises(
        SourceError, match=r"cannot be reached \(.+\)\n.*--config FILE.*catalogue does not have owner/model"
    ) as refused:
        read()
    assert len(str(refused.value).splitlines()) == 2
    source = read("Qwen/Qwen3-8B")
    assert time.monotonic() - started < 3
    assert source.has_weights and json.loads(source.config)["num_hidden_layers"] == 36
    assert "perfgen's catalogue" in source.notes[0] and "cannot be reached" in source.notes[0]
    assert "aiconfigurator-core 0.12.0" in source.notes[1]


def test_a_proxy_is_what_must_answer(monkeypatch):
    for name in ("http_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "NO_PROXY", "no_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert hub_connection.find_hub_address("https://huggingface.co") == ("huggingface.co", 443)
    monkeypatch.setenv("https_proxy", "http://user:word@proxy.example:3128")
    assert hub_connection.find_hub_address("https://huggingface.co") == ("proxy.example", 3128)
    monkeypatch.setenv("no_proxy", "huggingface.co")
    assert hub_connection.find_hub_address("https://huggingface.co") == ("huggingface.co", 443)
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("https_proxy", "proxy.example:no-number")
    assert hub_connection.find_hub_address("https://huggingface.co") is None


def test_the_hub_and_its_cache_win_over_the_catalogue(hub):
    add_model(hub, "Qwen/Qwen3-8B")
    for more in ({}, {"offline": True}):
        source = read("Qwen/Qwen3-8B", **more)
        assert json.loads(source.config) == CONFIG and source.revision


def test_a_gated_model_of_the_catalogue_is_planned_and_its_gate_named(hub):
    add_model(hub, "google/gemma-2-2b", access={"gated": "hf_right"})
    source = read("google/gemma-2-2b")
    assert json.loads(source.config)["hidden_size"] == 2304
    assert "gated, and no token was given" in source.notes[0]


def test_files_that_are_refused_after_the_config_are_left_to_the_run(hub):
    """A config.json in the cache from before a model was gated."""
    repo = add_model(hub)
    read()
    cached = list(hub_cache(hub).rglob("tokenizer_config.json")) + list(hub_cache(hub).rglob(".no_exist/*/*"))
    for path in cached:
        path.unlink()
    repo.gated = "hf_right"
    source = read()
    assert source.has_chat_template is None and source.has_tokenizer
    assert "only config.json could be read: owner/model is gated" in source.notes[0]


def hub_cache(hub):
    from pathlib import Path

    import huggingface_hub.constants as constants

    return Path(constants.HF_HUB_CACHE)


def render_chat_project(folder, **request):
    (folder / "chat.jsonl").write_text(CHAT * 8)
    small = {"task": "sft", "global_batch": 2, "hardware": "cpu:4", "data": str(folder / "chat.jsonl")}
    planned = pipeline.plan_request(Request(**small | request))
    document = to_json(build_document(planned, name="p"))
    render.render(document, folder / "p")
    link_sources(place_sources(planned.work, folder / "p"), folder / "p")
    return document, folder / "p"


@pytest.mark.parametrize("case", ["its own", "none", "--config", "offline"])
def test_a_project_writes_no_template_over_the_models_own(hub, tmp_path, case):
    """`init --model ID --task sft` wrote one over it: only config.json was fetched."""
    add_model(hub, files={} if case == "none" else {"chat_template.jinja": "{{ messages }}"})
    more = {"model": "owner/model"}
    if case == "--config":
        (tmp_path / "config.json").write_text(json.dumps(CONFIG))
        more["config"] = str(tmp_path / "config.json")
    if case == "offline":
        import huggingface_hub

        huggingface_hub.hf_hub_download("owner/model", "config.json")
        more["offline"] = True
    document, project = render_chat_project(tmp_path, **more)
    train, readme = (project / "train.py").read_text(), (project / "README.md").read_text()
    assert ".chat_template =" not in train and "CHAT_TEMPLATE" not in (project / "data.py").read_text()
    said = [note["text"] for note in document["notes"] if note["kind"] == "template"]
    if case == "its own":
        assert not said and "ensure_chat_template" not in train and not (project / "chat_template.py").exists()
        return
    assert train.count("ensure_chat_template(tokenizer)") == 1
    assert ("has no chat template" if case == "none" else "its own chat template is kept") in said[0]
    assert "chat template" in readme and "&lt;|user" in readme.replace("\\", "")
    known = case == "none"
    assert ("ensure_chat_template" in (project / "infer.py").read_text()) is not known
    assert (
        "args.base" in (project / "infer.py").read_text()
    ) is not known  # the base model has no template to ask it by


def test_no_token_is_written_anywhere(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_right0123456789abcdef")
    add_model(hub, access={"token": "hf_right0123456789abcdef"})
    document, project = render_chat_project(tmp_path, model="owner/model")
    assert ("GET", "Bearer hf_right0123456789abcdef") in {(verb, auth) for verb, _, auth in hub.requests}
    written = [*project.rglob("*"), *hub_cache(hub).rglob("*")]
    assert len(written) > 10
    assert not [p for p in written if p.is_file() and b"hf_right" in p.read_bytes()]
    assert "hf_right" not in json.dumps(document)
