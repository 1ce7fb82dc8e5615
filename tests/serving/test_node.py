"""The nodes of one server meet, start together, and end together."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml
from leaves import FRAGMENTS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="connections are kept alive as Linux does it")

ENGINE = """
import json, os, pathlib, signal, sys, time
HOST_VARIABLE = "ENGINE_HOST"
def list_node_words(rank, first):
    return [str(rank), first]
if __name__ == "__main__":
    rank = sys.argv[1]
    told = {"pid": os.getpid(), "argv": sys.argv[1:], "host": os.environ["ENGINE_HOST"]}
    pathlib.Path(rank + ".draft").write_text(json.dumps(told))
    os.replace(rank + ".draft", rank + ".json")
    signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path(rank + ".told").touch(), sys.exit(0)))
    time.sleep(600)
"""
"""In the place of an engine, which computes nothing here: it is started, and told to stop."""


@pytest.fixture
def folder(tmp_path) -> Path:
    port = find_port()
    for name, leaf in {
        "node": "serving/node",
        "own_server": "serving/own_server",
        "config_file": "config_file",
    }.items():
        text = (FRAGMENTS / f"{leaf}.py").read_text()
        (tmp_path / f"{name}.py").write_text(text.replace("PORT = 29549", f"PORT = {port}"))
    for name in ("quiet_imports", "terminal"):
        shutil.copyfile(FRAGMENTS / f"{name}.py", tmp_path / f"{name}.py")
    (tmp_path / "server.py").write_text(ENGINE)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"model": "m", "serving": {"flags": {"nnodes": 3}}}))
    return tmp_path


def find_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def connect(folder: Path) -> socket.socket:
    """To the first node, once it listens."""
    (line,) = [line for line in (folder / "node.py").read_text().splitlines() if line.startswith("PORT = ")]
    deadline = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection(("localhost", int(line.split()[2])), 1)
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


@contextmanager
def start(folder: Path, rank: object, first: str = "localhost") -> Iterator[subprocess.Popen]:
    with subprocess.Popen(
        [sys.executable, "node.py", "--port", "1"],
        cwd=folder,
        env=os.environ | {"NODE_RANK": str(rank), "MASTER_ADDR": first},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def await_file(path: Path) -> str:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} was not written"
        time.sleep(0.05)
    return path.read_text()


@contextmanager
def serve(folder: Path) -> Iterator[tuple[list[subprocess.Popen], list[dict]]]:
    """Three nodes, and what their engines were told."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(start(folder, rank)) for rank in (2, 1, 0)][::-1]
        yield nodes, [json.loads(await_file(folder / f"{rank}.json")) for rank in range(3)]


def test_nodes_start_together_and_know_the_first_by_the_address_that_they_have_reached(folder):
    """A name of the first may stand for 127.0.1.1 on itself, and an engine that listens there is reached by no other."""
    with start(folder, 0) as first, start(folder, 1):
        with connect(folder) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with connect(folder) as another_server:
            another_server.sendall(b"node 2 4\n")
            time.sleep(2)
        assert first.poll() is None and not list(folder.glob("*.json"))
        with start(folder, 2):
            told = [json.loads(await_file(folder / f"{rank}.json")) for rank in range(3)]
    assert [each["argv"] for each in told] == [[str(rank), "127.0.0.1", "--port", "1"] for rank in range(3)]
    assert {each["host"] for each in told} == {"127.0.0.1"}


@pytest.mark.parametrize("lost", ["node", "engine", "first"])
def test_a_node_that_is_lost_ends_the_others(folder, lost):
    with serve(folder) as (nodes, told):
        rank = 0 if lost == "first" else 2
        os.kill(told[rank]["pid"] if lost == "engine" else nodes[rank].pid, signal.SIGKILL)
        gone = "the engine here has ended (-9)" if lost == "engine" else None
        for other in range(3):
            said = nodes[other].communicate(timeout=60)[1]
            if other == rank and gone is None:
                continue
            assert nodes[other].returncode == 1 and f"node {other} of 3: " in said
            assert (gone if other == rank and gone else "is lost") in said
            assert "the server ends on all nodes" in said
            with pytest.raises(ProcessLookupError):
                os.kill(told[other]["pid"], 0)
            assert (folder / f"{other}.told").exists() or other == rank
        if gone is None:  # its engine is told as it dies
            await_file(folder / f"{rank}.told")


def test_a_node_that_is_told_to_stop_gives_its_engine_time(folder):
    with serve(folder) as (nodes, _):
        for node in nodes:
            node.send_signal(signal.SIGTERM)
        assert [node.wait(60) for node in nodes] == [0, 0, 0]
        assert all((folder / f"{rank}.told").exists() for rank in range(3))


def test_a_node_that_waits_for_the_others_can_be_stopped(folder):
    with start(folder, 0) as first, start(folder, 1) as second:
        connect(folder).close()  # both have begun to wait, or are about to
        for node in (first, second):
            time.sleep(1)
            node.send_signal(signal.SIGTERM)
        assert [node.wait(30) for node in (first, second)] == [143, 143]
    assert not list(folder.glob("*.json"))


@pytest.mark.parametrize(("rank", "why"), [("3", "of 3 nodes it is 0 to 2"), ("", "0 to 2"), ("one", "0 to 2")])
def test_a_number_that_no_node_has_is_refused(folder, rank, why):
    with start(folder, rank) as node:
        said = node.communicate(timeout=60)[1]
    assert node.returncode == 1 and why in said and "Traceback" not in said


def test_a_second_server_on_the_first_node_is_refused(folder):
    with start(folder, 0), connect(folder), start(folder, 0) as second:
        said = second.communicate(timeout=60)[1]
    assert second.returncode == 1 and "does a server run here already?" in said and "Traceback" not in said
