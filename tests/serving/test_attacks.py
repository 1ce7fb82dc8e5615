"""A server that really runs, and what comes over its port that no client sends; a tiny model, as none of it is about answers."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import time

import pytest
from running_server import NAME, make_project, run_server
from serving_projects import make_tiny_model

pytest.importorskip("uvicorn", reason="uvicorn, on which the server runs, is not installed")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attacked")
    model = make_tiny_model(folder / "model", positions=512)
    with run_server(make_project(folder / "project", model)) as running:
        running.wait_until_ready()
        yield running


def make_body(**more) -> bytes:
    return json.dumps({"model": NAME, "prompt": "hi", "max_tokens": 2} | more).encode()


def make_request(body: bytes, *headers: bytes, path: bytes = b"/v1/completions") -> bytes:
    length = b"Content-Length: %d" % len(body)
    lines = [b"POST " + path + b" HTTP/1.1", b"Host: x", b"Connection: close", length, *headers]
    return b"\r\n".join([*lines, b"", body])


def connect(server) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=120)


def send(server, data: bytes) -> bytes:
    with connect(server) as connection:
        try:
            connection.sendall(data)
            return b"".join(iter(lambda: connection.recv(65536), b""))
        except (BrokenPipeError, ConnectionResetError):
            return b""


def cut_into_chunks(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)


CHUNKED = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
FLOOD = b"".join(b"X-%d: %s\r\n" % (number, b"a" * 100) for number in range(5000))
ATTACKS = {
    "negative seed": (make_request(make_body(seed=-1, temperature=1)), 200),
    "tiny temperature": (make_request(make_body(temperature=5e-324, top_p=0.5)), 200),
    "all of how to choose": (make_request(make_body(top_k=3, min_p=0.1, repetition_penalty=1.5, top_p=0)), 200),
    "infinity": (make_request(b'{"model":"tested","prompt":"a","temperature":1e999}'), 400),
    "huge token": (make_request(b'{"model":"tested","prompt":[1,' + b"9" * 300 + b"]}"), 400),
    "deep": (make_request(b'{"prompt":' + b"[" * 90_000 + b"]" * 90_000 + b"}"), 400),
    "no length": (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 400),
    "two lengths": (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        400,
    ),
    "chunks": (CHUNKED + cut_into_chunks(make_body()[:9], make_body()[9:]) + b"0\r\n\r\n", 200),
    "chunks that are none": (CHUNKED + b"zz\r\n", 400),
    "another protocol": (b"\x16\x03\x01\x02\x00\x01\x00" + bytes(range(200)), 400),
    "packed body": (make_request(b"\x1f\x8b\x08\x00\x00", b"Content-Encoding: gzip"), 400),
    "announced body": (make_request(b"", b"Expect: 100-continue").replace(b": 0", b": 999999999999"), 413),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_each_is_told_and_the_next_is_answered(server, name):
    data, status = ATTACKS[name]
    assert b" %d " % status in send(server, data).split(b"\r\n\r\nHTTP")[-1].replace(b"100 Continue", b"")[:1000]
    assert send(server, make_request(make_body())).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "data", [CHUNKED + cut_into_chunks(b"x" * 65536) * 40, b"GET / HTTP/1.1\r\n" + FLOOD + b"\r\n"]
)
def test_floods_are_cut_off(server, data):
    before = server.resident_mib
    for _ in range(5):
        assert not send(server, data).startswith(b"HTTP/1.1 200")
    assert server.resident_mib - before < 50
    assert send(server, make_request(make_body())).startswith(b"HTTP/1.1 200")


def test_who_connects_and_asks_nothing_is_cut_off(server):
    """Nor who begins to: the files of a process are few."""
    silent = [connect(server) for _ in range(50)]
    for connection in silent[::2]:
        connection.sendall(b"GET /health HTTP/1.1\r\nX: ")
    assert send(server, make_request(make_body())).startswith(b"HTTP/1.1 200")
    begun = time.monotonic()
    for connection in silent:
        with connection, contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    assert time.monotonic() - begun < 60


def test_who_was_answered_and_asks_no_more_is_cut_off(server):
    """Begun again and never ended, or still sending a body that was refused: not the first request alone has its time."""
    refused = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n"
    answered = {b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n": b"HTTP/1.1 200", refused: b"HTTP/1.1 413"}
    with contextlib.ExitStack() as stack:
        held = []
        for request, status in answered.items():
            connection = stack.enter_context(connect(server))
            connection.sendall(request)
            assert connection.recv(4096).startswith(status)
            held.append(connection)
        begun = time.monotonic()
        while held and time.monotonic() - begun < 60:
            time.sleep(1)
            for connection in list(held):
                try:
                    connection.sendall(b"G" if time.monotonic() - begun < 2 else b"E")
                except OSError:
                    held.remove(connection)
        assert not held
    assert send(server, make_request(make_body())).startswith(b"HTTP/1.1 200")


def test_who_sends_half_a_body_keeps_nobody_waiting(server):
    """More of them than may wait: the next one is answered at once, and the first are told that they are too many. They
    were told that they were too slow, as were 55 of 80 that came whole and at once to a busy machine: 408, without a time
    to come again."""
    whole = make_request(make_body())
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connect(server)) for _ in range(40)]
        for connection in slow:
            connection.sendall(whole[:-5])
        server.wait_for_metric("requests_running", 0)
        begun = time.monotonic()
        assert send(server, whole).startswith(b"HTTP/1.1 200")
        assert time.monotonic() - begun < 15
        for connection in slow[:20]:
            head = connection.recv(4096)
            assert head.startswith(b"HTTP/1.1 429") and b"\r\nretry-after: " in head.lower()
        slow[-1].sendall(whole[-5:])
        assert slow[-1].recv(100).startswith(b"HTTP/1.1 200")


def test_a_pause_of_the_process_loses_nothing(server):
    server.process.send_signal(signal.SIGSTOP)
    with connect(server) as connection:
        connection.sendall(make_request(make_body()))
        time.sleep(1)
        server.process.send_signal(signal.SIGCONT)
        assert connection.recv(100).startswith(b"HTTP/1.1 200")


def test_nothing_is_left_running(server):
    server.wait_for_metric("requests_running", 0)
    assert server.read_metric("requests_waiting") == 0
    assert not any("Traceback" in line for line in server.lines)
