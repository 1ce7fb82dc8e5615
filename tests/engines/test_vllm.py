"""vLLM's own parser on what the launcher of every serving project hands it, and a server of it on a CPU."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import openai
import pytest
import requests
import yaml
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


def make_project(folder: Path, hardware: str, *pins: tuple[str, str], **asked) -> Path:
    request = Request(
        model=str(find_model()),
        mode="infer",
        hardware=hardware,
        pins=(("engine", "vllm"), *pins),
        prompt_tokens=128,
        new_tokens=64,
        offline=True,
        **asked,
    )
    folder.mkdir()
    render(to_json(document_request(request, for_project=True)), folder)
    link = folder / "model" / find_model().name
    if not link.exists():
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(find_model())
    return folder


def find_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def serve(python: Path, folder: Path, port: int, log: Path, **more: str) -> Iterator[subprocess.Popen]:
    """The emitted launcher, by environment alone on a CPU; eager, as a user may ask with vLLM's own flag."""
    environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "API_KEY": "secret", "HF_HUB_OFFLINE": "1"} | more
    environment["PATH"] = f"{python.parent}:{environment['PATH']}"
    with log.open("w") as out:
        process = subprocess.Popen(
            ["sh", "serve.sh", "--port", str(port), "--enforce-eager"],
            cwd=folder,
            env=environment,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):  # the group, whose first process may have ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def await_model(url: str, running: list[tuple[subprocess.Popen, Path]]):
    """A client of the server, and its model."""
    client = openai.OpenAI(base_url=url, api_key="secret", max_retries=0, timeout=300)
    deadline = time.monotonic() + 900
    while True:
        try:
            (model,) = client.models.list().data
            return client, model
        except openai.APIConnectionError:
            for process, log in running:
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(2)


@pytest.fixture(scope="module")
def server(python, tmp_path_factory):
    folder, port = make_project(tmp_path_factory.mktemp("served") / "p", "1xl40s", concurrency=4), find_port()
    with serve(python, folder, port, folder / "log") as process:
        yield f"http://127.0.0.1:{port}/v1", process, folder / "log"


def test_the_emitted_project_serves(server):
    """Greedy tokens of a real model, streamed; the name, the key, the limits; and an end within the grace."""
    url, process, log = server
    client, model = await_model(url, [(process, log)])
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


def read_metrics(port: int) -> str:
    return requests.get(f"http://127.0.0.1:{port}/metrics", timeout=60).text


def test_copies_on_two_nodes_answer_behind_one_address(python, tmp_path):
    """Both nodes are this machine: the second has no server, and computes what the first hands on to it."""
    folder = make_project(tmp_path / "p", "2x1xl40s", ("parallelism", "served-copies"), concurrency=64)
    words = yaml.safe_load((folder / "config.yaml").read_text())["serving"]["flags"]
    assert (words["nnodes"], words["data-parallel-size"]) == (2, 2) and "pipeline-parallel-size" not in words
    ports = [find_port(), find_port()]
    nodes = {"MASTER_ADDR": "127.0.0.1", "VLLM_LOOPBACK_IP": "127.0.0.1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    with ExitStack() as both:
        running = []
        for rank in range(2):
            log = folder / f"log-{rank}"
            started = both.enter_context(serve(python, folder, ports[rank], log, NODE_RANK=str(rank), **nodes))
            running.append((started, log))
        client, model = await_model(f"http://127.0.0.1:{ports[0]}/v1", running)
        turns = [{"role": "user", "content": "What is the capital of France?"}]

        def ask(_: int) -> str:
            asked = {"temperature": 0, "max_tokens": 24}
            return client.chat.completions.create(model=model.id, messages=turns, **asked).choices[0].message.content

        with ThreadPoolExecutor(8) as users:
            answers = list(users.map(ask, range(16)))
        assert all("Paris" in answer for answer in answers)
        counted = re.findall(
            r'^vllm:request_success_total\{engine="(\d)".*finished_reason="(?:stop|length)".* ([\d.]+)$',
            read_metrics(ports[0]),
            re.M,
        )
        by_copy = {copy: sum(float(n) for of, n in counted if of == copy) for copy, _ in counted}
        assert len(by_copy) == 2 and sum(by_copy.values()) == 16 and min(by_copy.values()) > 0, by_copy
        # told to stop in mid-answer, by processes of which none has the engines
        (first, _), (second, log) = running
        with ThreadPoolExecutor(4) as users:
            under_way = [users.submit(ask, number) for number in range(4)]
            while not re.search(r"^vllm:num_requests_running.* [1-9]", read_metrics(ports[0]), re.M):
                assert not all(each.done() for each in under_way), "they were answered too soon to be cut"
            first.send_signal(signal.SIGTERM)
            assert all("Paris" in each.result() for each in under_way)
        assert first.wait(120) == 0 and second.wait(120) == 1
        assert "the first node (127.0.0.1) is lost, and the server ends on all nodes" in log.read_text()
