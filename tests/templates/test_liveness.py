"""liveness.py: who is killed is named at once, on other nodes too; who ends, or only lost its connection, is not."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from leaves import FRAGMENTS, load_leaf

TORCHRUN = Path(sys.executable).with_name("torchrun")
GRACE = 1.0


class Reports(list):
    """Ranks that were reported."""

    def wait(self, seconds: float = GRACE) -> list[int]:
        end = time.monotonic() + seconds
        while not self and time.monotonic() < end:
            time.sleep(0.02)
        return list(self)


@pytest.fixture
def liveness(monkeypatch):
    """The module, and a store that has the first process's port and token."""
    import torch.distributed as dist

    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    module = load_leaf("liveness")
    module.RETURN_SECONDS, module.LOOK_SECONDS = 0.4, 0.05
    return module, dist.HashStore()


def begin(liveness, rank: int):
    module, store = liveness
    reports = Reports()
    watch = module.watch_lives(store, rank, reports.append)
    return watch, reports


def wait_until_held(first, count: int) -> None:
    end = time.monotonic() + 10
    while sum(map(bool, map(first.read_rank, list(first.received)))) < count and time.monotonic() < end:
        time.sleep(0.02)
    assert sum(map(bool, map(first.read_rank, list(first.received)))) == count


def cut(watch) -> None:
    """As the system does it for a process that is killed, and something between the nodes for one that lives."""
    watch.connections[0].shutdown(socket.SHUT_RDWR)


def test_who_ends_without_a_word_is_reported_once_and_who_ends_by_itself_is_not(liveness):
    first, reports = begin(liveness, 0)
    others = [begin(liveness, rank)[0] for rank in (1, 2)]
    wait_until_held(first, 2)
    others[0].end()
    others[1].ending.set()  # it comes not again
    cut(others[1])
    assert reports.wait(5) == [2]
    time.sleep(GRACE)
    assert reports == [2]
    first.end()


def test_a_connection_that_breaks_is_made_again_by_who_lives(liveness):
    first, reports = begin(liveness, 0)
    other, of_other = begin(liveness, 1)
    wait_until_held(first, 1)
    cut(other)
    assert not reports.wait() and not of_other
    wait_until_held(first, 1)
    first.end()
    other.join(5)
    assert not other.is_alive() and not of_other.wait()


def test_the_first_process_is_missed_by_the_others(liveness):
    first, _ = begin(liveness, 0)
    other, reports = begin(liveness, 1)
    wait_until_held(first, 1)
    first.ending.set()
    first.join(5)
    first.close()
    assert reports.wait(5) == [0] and not other.ending.is_set()


def test_others_who_come_to_the_port_end_nothing(liveness):
    first, reports = begin(liveness, 0)
    port, token = liveness[1].get("liveness").decode().split()
    for words in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes.fromhex(token)[:8], bytes(16) + (1).to_bytes(4, "big")):
        with socket.create_connection(("localhost", int(port))) as connection:
            connection.sendall(words)
    assert not reports.wait()
    first.end()


def test_where_one_launcher_has_all_processes_it_sees_them_itself(liveness, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert begin(liveness, 0)[0] is None


KILLED = """
import multiprocessing, os, sys, time
import torch, torch.distributed as dist
import heartbeat
from launcher_summary import tell_of_end
heartbeat.BEAT_SECONDS = 0.5  # and the silence that counts is ten minutes of it
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
heartbeat.watch_others()
multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,), daemon=True).start()
with tell_of_end():
    for step in range(1000):
        dist.all_reduce(torch.ones(1))
        if step == 20:
            open(f"pid-{rank}", "w").write(str(os.getpid()))
            if sys.argv[1] == "elsewhere":
                time.sleep(600)  # as in a collective of a GPU, which waits for it without an error
        time.sleep(0.1)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "place"),
    [(1, "collective"), pytest.param(1, "elsewhere", marks=pytest.mark.core), (0, "elsewhere")],
)
def test_a_killed_process_is_named_on_the_other_node(rank, place, tmp_path):
    """A launcher on each: that of the other sees nothing of it. What the killed one has forked lives on."""
    (tmp_path / "program.py").write_text(KILLED, encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = str(probe.getsockname()[1])
    words = ["--nproc-per-node", "1", "--shutdown-timeout", "3", "--master-addr", "localhost", "--master-port", port]
    nodes = [
        subprocess.Popen(
            [TORCHRUN, "--nnodes", "2", "--node-rank", str(node), *words, "program.py", place],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(FRAGMENTS), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for node in range(2)
    ]
    pids = [tmp_path / f"pid-{n}" for n in range(2)]
    end = time.monotonic() + 300
    while not all(path.exists() and path.read_text() for path in pids) and time.monotonic() < end:
        time.sleep(0.2)
    number = int(pids[rank].read_text())
    os.kill(number, signal.SIGKILL)
    begun = time.monotonic()
    outputs = [node.communicate(timeout=200)[0] for node in nodes]
    assert time.monotonic() - begun < 60
    assert all(node.returncode for node in nodes)
    summary = outputs[1 - rank].rpartition("Root Cause")[2]
    assert f"rank {rank} " in summary and " has ended without a word: it was killed" in summary, outputs[1 - rank]
