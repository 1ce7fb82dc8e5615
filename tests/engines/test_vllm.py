"""vLLM's own parser on what the launcher of every serving project hands it, and a server of it on a CPU."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from engine_flags import plan_projects, read_flags
from engine_projects import find_model, find_python

from generator.case.request import Request
from generator.emit.plan_json import to_json
from generator.emit.render import render
from generator.pipeline import document_request

pytestmark = [pytest.mark.engines, pytest.mark.slow]


@pytest.fixture(scope="module")
def python() -> Path:
    return find_python("serve-vllm")


@pytest.fixture(scope="module")
def projects(tmp_path_factory) -> list[tuple[Path, dict]]:
    made = list(plan_projects(tmp_path_factory.mktemp("projects"), "vllm", "vllm"))
    assert len(made) >= 70
    flags = {name for _, document in made for name in document["config"]["serving"]["flags"]}
    assert {"quantization", "speculative-config", "tensor-parallel-size", "data-parallel-size", "nnodes"} <= flags
    return made


def test_every_flag_is_parsed_and_means_what_the_plan_says(python, projects):
    answers = read_flags(python, "vllm", [folder for folder, _ in projects])
    assert [a["refused"] for a in answers if "refused" in a] == []
    for (_, document), answer in zip(projects, answers, strict=True):
        for name, value in document["config"]["serving"]["flags"].items():
            read = answer["read"][name.replace("-", "_")]
            assert read in (repr(value), str(value)) or name == "speculative-config", (name, value, read)


@pytest.fixture(scope="module")
def server(python, tmp_path_factory):
    """The emitted launcher, by environment alone on a CPU; eager, as a user may ask with vLLM's own flag."""
    folder = tmp_path_factory.mktemp("served") / "p"
    asked = {"hardware": "1xl40s", "concurrency": 4, "prompt_tokens": 128, "new_tokens": 64}
    request = Request(model=str(find_model()), mode="infer", pins=(("engine", "vllm"),), offline=True, **asked)
    folder.mkdir()
    render(to_json(document_request(request, for_project=True)), folder)
    link = folder / "model" / find_model().name
    if not link.exists():
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(find_model())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "API_KEY": "secret", "HF_HUB_OFFLINE": "1"}
    environment["PATH"] = f"{python.parent}:{environment['PATH']}"
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            ["sh", "serve.sh", "--port", str(port), "--enforce-eager"],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield f"http://127.0.0.1:{port}/v1", process, folder / "log"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_the_emitted_project_serves(server):
    """Greedy tokens of a real model, streamed; the name, the key, the limits; and an end within the grace."""
    openai = pytest.importorskip("openai")
    url, process, log = server
    client = openai.OpenAI(base_url=url, api_key="secret", max_retries=0, timeout=300)
    deadline = time.monotonic() + 900
    while True:
        try:
            (model,) = client.models.list().data
            break
        except openai.APIConnectionError:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(2)
    assert model.id == find_model().name and model.max_model_len == 8192
    turns = [{"role": "user", "content": "What is the capital of France?"}]
    answer = client.chat.completions.create(model=model.id, messages=turns, temperature=0, max_tokens=24)
    assert "Paris" in answer.choices[0].message.content
    stream = client.chat.completions.create(model=model.id, messages=turns, temperature=0, max_tokens=24, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == answer.choices[0].message.content
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=url, api_key="wrong", max_retries=0).models.list()
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model=model.id, prompt="word " * 9000, max_tokens=8)
    process.send_signal(signal.SIGTERM)
    process.wait(60)
