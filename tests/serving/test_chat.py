"""chat.py at a terminal and in a pipe, with the server that it starts itself and with one that runs."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time

import httpx
import pytest
from running_server import make_project, run_server

pytest.importorskip("uvicorn", reason="uvicorn, on which the server runs, is not installed")
SECONDS = 240


@pytest.fixture(scope="module")
def project(model, tmp_path_factory):
    return make_project(tmp_path_factory.mktemp("chat"), model, port=9, max_new_tokens=200)  # nothing answers there


def list_servers(project) -> list[str]:
    found = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout.splitlines()
    pids = [line.split()[0] for line in found if "server.py" in line]
    return [pid for pid in pids if os.path.realpath(f"/proc/{pid}/cwd") == str(project)]


def load_chat(load):
    for leaf, name in (
        ("terminal", "terminal"),
        ("serving/api_key", "api_key"),
        ("serving/own_server", "own_server"),
    ):
        load(leaf, name)
    return load("serving/chat", "chat")


def test_a_server_that_was_just_started_is_waited_for(load, monkeypatch):
    """`make serve` in one terminal and `make chat` in the next ended with "503: The model is being loaded"."""
    chat = load_chat(load)
    states = ["loading", "loading", "ready"]
    monkeypatch.setattr(chat.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(chat.httpx, "get", lambda url, timeout: httpx.Response(200, json={"status": states.pop(0)}))
    chat.wait_while_loading("http://here")
    assert states == []


@pytest.mark.parametrize(("served", "asked"), [(["p-base", "p"], "p"), (["other"], "other")])
def test_the_model_of_the_project_is_asked_where_it_is_served(load, served, asked):
    """vLLM lists the model beneath an adapter before it."""
    chat = load_chat(load)
    answer = httpx.MockTransport(lambda _: httpx.Response(200, json={"data": [{"id": name} for name in served]}))
    assert chat.find_model(httpx.Client(transport=answer, base_url="http://here"), "p") == asked


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "code", "words"),
    [('{"enable_thinking": false}', 1, "has no argument 'enable_thinking'"), ("[1]", 2, "is no object")],
)
def test_arguments_of_the_chat_template_are_asked_for(project, given, code, words):
    """SmolLM2's template has none: the server says so."""
    done = subprocess.run(
        [sys.executable, "chat.py", "--chat_template_kwargs", given],
        cwd=project,
        input="Hi",
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={**os.environ, "PYTHON": sys.executable},
    )
    assert (done.returncode, done.stdout.strip()) == (code, "") and words in done.stderr


@pytest.mark.slow
def test_a_pipe_is_answered_by_a_server_of_its_own(project):
    done = subprocess.run(
        [sys.executable, "chat.py", "--temperature", "0"],
        cwd=project,
        input="What is the capital of France?",
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={**os.environ, "PYTHON": sys.executable},
    )
    assert (done.returncode, done.stdout) == (0, "The capital of France is Paris.\n")
    assert "starting ./serve.sh" in done.stderr and not list_servers(project)


class Terminal:
    def __init__(self, words: list[str], folder) -> None:
        self.process, self.screen = None, ""
        pid, self.descriptor = pty.fork()
        if pid == 0:
            os.chdir(folder)
            os.environ["TERM"] = "dumb"
            os.execv(words[0], words)
        self.pid = pid

    def type(self, text: str) -> None:
        self.screen = ""
        os.write(self.descriptor, text.encode())

    def wait_for(self, pattern: str) -> str:
        end = time.monotonic() + SECONDS
        while not re.search(pattern, self.screen):
            assert time.monotonic() < end, self.screen
            if select.select([self.descriptor], [], [], 1)[0]:
                try:
                    self.screen += os.read(self.descriptor, 65536).decode(errors="replace")
                except OSError:  # the other end is closed
                    assert re.search(pattern, self.screen), self.screen
        return self.screen


@pytest.mark.slow
def test_a_person_at_a_terminal(project):
    with run_server(project) as server:
        server.wait_until_ready()
        words = [sys.executable, "chat.py", "--url", server.url, "--temperature", "0"]
        terminal = Terminal(words, project)
        terminal.wait_for("/reset forgets(.|\n)*> $")
        terminal.type("What is the capital of France?\n")
        terminal.wait_for(r"The capital of France is Paris\.\r\n(.|\n)*> $")
        terminal.type("And of Italy?\n")  # understood by what was said
        terminal.wait_for(r"Rome(.|\n)*> $")
        terminal.type("Write a long story about a ship.\n")
        terminal.wait_for(r"ship\.\r\n\S+ \S+ \S+")
        terminal.type("\x03")
        terminal.wait_for(r"\[stopped\]\r\n(.|\n)*> $")
        server.wait_for_metric("requests_running", 0)
        assert server.read_metric('requests_total{outcome="disconnected"}') == 1
        terminal.type("/reset\n")
        terminal.wait_for("forgotten")
        terminal.type("/nonsense\n")
        terminal.wait_for("/quit")
        terminal.type("/quit\n")
        assert os.waitpid(terminal.pid, 0)[1] == 0
        assert server.process.poll() is None  # it is not chat.py's


@pytest.mark.slow
def test_a_server_that_does_not_start_is_shown(model, tmp_path):
    project = make_project(tmp_path, tmp_path / "not-here", port=9)
    words = [sys.executable, "chat.py"]
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(
        words, cwd=project, input="x", capture_output=True, text=True, timeout=SECONDS, env=environment
    )
    assert done.returncode == 1 and "serve.sh ended with 1" in done.stderr and "is not here" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no signal at the end of a parent")
def test_a_server_ends_with_a_chat_that_is_killed(project):
    with subprocess.Popen(
        [sys.executable, "chat.py"],
        cwd=project,
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHON": sys.executable},
    ) as chat:
        chat.stdin.write(b"Hello")
        chat.stdin.close()  # an open pipe is read first: no server is started before it ends
        wait_for(lambda: list_servers(project))
        chat.kill()
    wait_for(lambda: not list_servers(project))


def wait_for(condition) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_what_a_terminal_would_obey_is_shown(load, monkeypatch, capsys):
    load("terminal")
    load("serving/api_key", "api_key")
    load("serving/own_server", "own_server")
    chat = load("serving/chat", "chat")
    conversation = chat.Conversation(client=None, model="m", options={}, system="Be brief.")
    monkeypatch.setattr(conversation, "stream", lambda messages: iter(["a\x1b[2Jb", "\n"]))
    conversation.ask("x")
    assert capsys.readouterr().out == "a\\x1b[2Jb\n\n"
    assert [turn["role"] for turn in conversation.messages] == ["system", "user", "assistant"]
    conversation.forget()
    assert [turn["role"] for turn in conversation.messages] == ["system"]
