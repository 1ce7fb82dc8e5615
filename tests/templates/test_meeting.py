"""meeting.py with torchrun: nodes that do not meet are told which have come, or that the first is not reached, and why."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from leaves import FRAGMENTS

pytestmark = [pytest.mark.slow, pytest.mark.core]
SOON = "read_timeout=10,join_timeout=10"


def start(folder: Path, name: str, address: str, port: int, nodes: int = 2, **environment) -> subprocess.Popen[str]:
    folder = folder / name
    folder.mkdir(exist_ok=True)
    shutil.copy(FRAGMENTS / "quiet_imports.py", folder)
    text = (FRAGMENTS / "meeting.py").read_text(encoding="utf-8")
    seconds = (("TOLD_SECONDS = 30.0", "TOLD_SECONDS = 2.0"), ("SILENT_SECONDS = 600.0", "SILENT_SECONDS = 5.0"))
    for slow, fast in (*seconds, ("socket.gethostname()", f"'{name}'")):
        assert slow in text
        text = text.replace(slow, fast, 1)
    (folder / "meeting.py").write_text(text, encoding="utf-8")
    (folder / "program.py").write_text("import os\nprint('rank', os.environ['RANK'])\n", encoding="utf-8")
    words = ["--nnodes", str(nodes), "--nproc-per-node", "1", "--local-addr", "localhost", "--rdzv-backend", "c10d"]
    words += ["--rdzv-conf", SOON, "--rdzv-endpoint", f"{address}:{port}", "program.py"]
    return subprocess.Popen(
        [sys.executable, "meeting.py", "--nodes", str(nodes), "--port", str(port), "torchrun", *words],
        cwd=folder,
        env={**os.environ, "MASTER_ADDR": address, "OMP_NUM_THREADS": "1"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def choose_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def test_nodes_that_all_come_are_told_nothing_more(tmp_path):
    port = choose_port()
    nodes = [start(tmp_path, f"node-{n}", "localhost", port) for n in (1, 2)]
    ended = [node.communicate(timeout=200) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], ended
    assert sorted(out.strip() for out, _ in ended) == ["rank 0", "rank 1"]
    assert not any("Traceback" in said for _, said in ended)


def test_two_runs_that_share_their_first_node_meet_at_ports_of_their_own(tmp_path):
    with socket.create_server(("localhost", 0)) as other:
        planned, port = other.getsockname()[1], choose_port()
        names = [f"node-{n}" for n in (1, 2)]
        nodes = [start(tmp_path, name, "localhost", planned, MEETING_PORT=str(port)) for name in names]
        ended = [node.communicate(timeout=200) for node in nodes]
    assert sorted(out.strip() for out, _ in ended) == ["rank 0", "rank 1"], ended


def test_a_node_that_waits_alone_says_who_has_come(tmp_path):
    port = choose_port()
    node = start(tmp_path, "node-1", "localhost", port)
    _, said = node.communicate(timeout=200)
    last, advice = said.splitlines()[-2:]
    assert node.returncode == 1 and "Traceback" not in said, said
    assert last == f"meeting.py: 1 of 2 nodes have come to localhost:{port}: node-1"
    assert said.count(last) > 1 and "have not begun" in advice  # said before, too


def test_a_first_node_that_is_not_reached_is_named_with_the_reason(tmp_path):
    node = start(tmp_path, "node-2", "no-such-node.invalid", 29500)
    _, said = node.communicate(timeout=200)
    last, advice = said.splitlines()[-2:]
    assert node.returncode == 1 and "Traceback" not in said, said
    assert last.startswith("meeting.py: node-2 has not reached the first node, no-such-node.invalid:29500: ")
    assert "ame" in last.rpartition(": ")[2] and advice.startswith(
        "MASTER_ADDR is to be"
    )  # of a name, or its resolution


def test_a_program_that_has_the_port_and_says_nothing_is_no_launcher(tmp_path):
    with socket.create_server(("localhost", 0)) as program:  # torchrun listens to it for ever
        port = program.getsockname()[1]
        node = start(tmp_path, "node-1", "localhost", port)
        _, said = node.communicate(timeout=200)
    last, advice = said.splitlines()[-2:]
    assert node.returncode == 1 and "Traceback" not in said, said
    assert last == f"meeting.py: what node-1 has reached at localhost:{port} does not answer as a launcher does"
    assert said.count(last) > 1 and advice.startswith("Another program has that port")


def read_until(node: subprocess.Popen[str], text: str) -> None:
    assert node.stderr and any(text in line for line in node.stderr)


def test_a_node_that_is_started_again_counts_once(tmp_path):
    port = choose_port()
    first = start(tmp_path, "node-1", "localhost", port, nodes=3)
    try:
        read_until(first, "1 of 3 nodes")
        again = start(tmp_path, "node-2", "localhost", port, nodes=3)
        read_until(first, "2 of 3 nodes")
        again.kill()
        again.communicate()
        again = start(tmp_path, "node-2", "localhost", port, nodes=3)
        _, said = again.communicate(timeout=200)
        assert f"meeting.py: 2 of 3 nodes have come to localhost:{port}: node-1, node-2" in said.splitlines()
    finally:
        first.kill()
        first.communicate()


@pytest.mark.parametrize("name", ["", " ", "tcp://node-1", "node-1..lan", "x" * 80])
def test_what_no_host_can_be_called_is_refused_at_once(tmp_path, name):
    node = start(tmp_path, "node-1", name, 29500)
    _, said = node.communicate(timeout=200)
    refusal, advice = said.splitlines()
    assert node.returncode == 1 and refusal.startswith(f"meeting.py: MASTER_ADDR is {name!r}, ")
    assert advice.startswith("MASTER_ADDR is to be")
