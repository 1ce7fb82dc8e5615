"""bench.py and chat.py against what answers in the place of their server: lines, never a traceback, and an end."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from leaves import FRAGMENTS

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
PIECE = b'data: {"choices": [{"text": "a", "delta": {"content": "a"}}]}\n\n'
USAGE = b'data: {"choices": [], "usage": {"completion_tokens": 2, "prompt_tokens": 3}}\n\ndata: [DONE]\n\n'
ENDLESS = b"\0"
"""Written again and again until nobody reads it."""


def read_request(connection: socket.socket) -> None:
    """Head and body, which may come apart: closed with bytes unread, a connection is reset, and what was written may be lost."""
    head, _, body = connection.recv(65536).partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: *(\d+)", head)
    while length and len(body) < int(length[1]):
        more = connection.recv(65536)
        if not more:
            return
        body += more


@contextmanager
def answer_with(content: bytes) -> Iterator[str]:
    """A server that reads a request, and writes these bytes to whoever asked what."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=talk, args=(connection,), daemon=True).start()

        def talk(connection: socket.socket) -> None:
            with connection:
                try:
                    read_request(connection)
                    whole, endless, rest = content.partition(ENDLESS)
                    connection.sendall(whole)
                    while endless:
                        connection.sendall(rest)
                        time.sleep(0.02)
                except OSError:
                    return

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


ANSWERS = {
    "no HTTP": (b"SSH-2.0-OpenSSH_9.2\r\n", "BadStatusLine"),
    "a page": (b"HTTP/1.1 404 Not Found\r\nContent-Length: 6\r\n\r\n<html>", "HTTP 404: <html>"),
    "no JSON": (OK + b"data: {'a': 1}\n\n", "JSONDecodeError"),
    "a number": (OK + b"data: 5\n\n", "no completion: 5"),
    "an error": (OK + PIECE + b'data: {"error": {"message": "out of memory"}}\n\n', "out of memory"),
    "broken off": (OK + PIECE, "without its usage"),
    "no counts": (OK + PIECE + b'data: {"usage": {"completion_tokens": "2"}}\n\n', "without its usage"),
    "usage of another kind": (OK + PIECE + b'data: {"usage": [1]}\n\n', "without its usage"),
    "a long line": (OK + b"data: " + b"x" * (3 << 20), "longer than 1,048,576 bytes"),
    "not the whole length": (b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n" + PIECE, "without its usage"),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_a_measured_request_says_what_came(load, kind):
    content, words = ANSWERS[kind]
    client = load("serving/bench_requests", "bench_requests")
    with answer_with(content) as url:
        answer = client.Client(url, None, "m").complete("x", 2)
    assert words in (answer.problem or ""), answer


def test_a_measured_request_is_counted(load):
    client = load("serving/bench_requests", "bench_requests")
    with answer_with(OK + PIECE + PIECE + USAGE) as url:
        answer = client.Client(url, None, "m").complete("x", 2)
    assert answer.problem is None and (answer.tokens, answer.prompt_tokens) == (2, 3)


def test_the_end_of_the_time_cuts_what_is_under_way(load):
    requests = load("serving/bench_requests", "bench_requests")
    figures = load("serving/bench_figures", "bench_figures")
    with answer_with(OK + ENDLESS + PIECE) as url:
        client = requests.Client(url, None, "m")
        client.end = time.perf_counter() + 0.5
        begun = time.perf_counter()
        answers, _ = requests.run_closed(lambda number, due: client.complete("x", 2, due), 2, 5, lambda: None)
    assert time.perf_counter() - begun < 5
    assert [answer.problem for answer in answers] == [requests.CUT] * 10
    row = figures.describe_load(answers, 1.0, kind="closed", users=2)
    assert (row["requests"], row["failed"], row["cut"]) == (0, 0, 10)


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:99999", "127.0.0.1:8000", "http://[::1"])
def test_an_address_is_judged_before_anything_starts(load, url):
    assert load("serving/bench_requests", "bench_requests").explain_address(url)


def test_a_stranger_is_not_waited_for(load, tmp_path):
    requests = load("serving/bench_requests", "bench_requests")
    load("terminal")
    load("serving/api_key", "api_key")
    server = load("serving/bench_server", "bench_server")
    page = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
    with answer_with(page) as url, pytest.raises(SystemExit, match="answered with 404"):
        server.wait_until_ready(requests.Client(url, None, "m"), None, tmp_path / "log", print)
    server.STRANGER_SECONDS = 0.2
    with answer_with(b"SSH-2.0\x1b[2J\r\n") as url, pytest.raises(SystemExit) as ended:
        server.wait_until_ready(requests.Client(url, None, "m"), None, tmp_path / "log", print)
    assert "BadStatusLine" in str(ended.value) and "\x1b" not in str(ended.value)


CHATS = {
    "no HTTP": b"SSH-2.0-OpenSSH_9.2\r\n",
    "no JSON": OK + b"data: {'a': 1}\n\n",
    "a number": OK + b"data: 5\n\n",
    "no choices": OK + b'data: {"choices": null}\n\n',
    "choices of another kind": OK + b'data: {"choices": ["a"]}\n\n',
    "an error of another kind": OK + b'data: {"error": "x"}\n\n',
    "a long line": OK + b"data: " + b"x" * (3 << 20),
    "an endless line": OK + ENDLESS + b"x" * 65536,
    "broken off": b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n" + PIECE,
    "a page": b"HTTP/1.1 500 Oh\r\nContent-Length: 6\r\n\r\n<html>",
}


@pytest.mark.parametrize("kind", CHATS)
def test_a_question_that_fails_says_why(load, kind):
    for leaf in ("terminal", "config_file"):
        load(leaf)
    load("serving/api_key", "api_key")
    load("serving/own_server", "own_server")
    chat = load("serving/chat", "chat")
    with answer_with(CHATS[kind]) as url, httpx.Client(base_url=url, timeout=20) as client:
        conversation = chat.Conversation(client, "m", {}, None)
        with pytest.raises(chat.ServerError):
            conversation.ask("x")


def test_half_a_character_and_a_turned_line_are_shown(load, capsys):
    for leaf in ("terminal", "config_file"):
        load(leaf)
    load("serving/api_key", "api_key")
    load("serving/own_server", "own_server")
    chat = load("serving/chat", "chat")
    pieces = ["\x1b]52;c;aGk=\x07", "\ud83d", "\u202egnp.exe", "ä\tb\n"]
    events = b"".join(
        b"data: " + json.dumps({"choices": [{"delta": {"content": piece}}]}).encode() + b"\r\n\r\n" for piece in pieces
    )
    with answer_with(OK + events) as url, httpx.Client(base_url=url, timeout=20) as client:
        chat.Conversation(client, "m", {}, None).ask("x")
    assert capsys.readouterr().out == "\\x1b]52;c;aGk=\\x07\\ud83d\\u202egnp.exeä\tb\n\n"


def run_chat(folder, *flags: str, text: bytes = b"x") -> subprocess.CompletedProcess:
    for leaf in ("serving/chat", "serving/api_key", "serving/own_server", "config_file", "quiet_imports", "terminal"):
        shutil.copy(FRAGMENTS / f"{leaf}.py", folder)
    (folder / "config.yaml").write_text("serving: {port: 9, name: smollm2}\n")
    command = [sys.executable, "chat.py", *flags]
    quiet = os.environ | {"PYTHONIOENCODING": "ascii"}
    return subprocess.run(command, cwd=folder, input=text, capture_output=True, timeout=120, env=quiet)


@pytest.mark.slow
def test_an_address_that_is_told_wrong_starts_no_server(tmp_path):
    for url in ("http://127.0.0.1:9", "ftp://x", "http://x:99999", "nonsense"):
        done = run_chat(tmp_path, "--url", url)
        assert done.returncode == 1 and b"no server answers at" in done.stderr and b"Traceback" not in done.stderr
    everything = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
    with answer_with(everything) as url:
        done = run_chat(tmp_path, "--url", url, text=b"\xff\xfe")
    assert done.returncode == 1 and b"is no server of this kind" in done.stderr and b"Traceback" not in done.stderr
