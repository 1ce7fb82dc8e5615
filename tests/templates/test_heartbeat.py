"""heartbeat.py over gloo: who is stopped is named, who ends is not."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from leaves import FRAGMENTS

TORCHRUN = Path(sys.executable).with_name("torchrun")
PROGRAM = """
import os, sys, time
import torch, torch.distributed as dist
import heartbeat
heartbeat.BEAT_SECONDS, heartbeat.SILENT_SECONDS, heartbeat.GONE_SECONDS = 0.5, 6.0, 3.0
dist.init_process_group("gloo")
heartbeat.watch_others()
open(f"pid-{dist.get_rank()}", "w").write(str(os.getpid()))
end = time.monotonic() + float(sys.argv[1])
while True:
    told = torch.tensor(float(time.monotonic() > end))
    dist.all_reduce(told, dist.ReduceOp.MAX)
    if told:
        break
    time.sleep(0.1)
if dist.get_rank():
    time.sleep(9)  # longer than the silence that counts: rank 0 has ended, and said so
dist.destroy_process_group()
"""

HANGS = """
import os, sys, time
import torch, torch.distributed as dist
import heartbeat, standstill
heartbeat.BEAT_SECONDS, standstill.STILL_SECONDS = 0.2, 3.0
dist.init_process_group("gloo")
rank = dist.get_rank()
heartbeat.watch_others()


def hang_in_data():
    end = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < end:
        time.sleep(0.05)
        if standstill.STANDSTILL and sys.argv[2] == "aborts":
            os.abort()


for step in range(12):
    if step == 10 and rank == 2:
        hang_in_data()
    dist.all_reduce(torch.ones(1))
    time.sleep(0.3)
    if sys.argv[2] != "has not begun":
        standstill.PACE.move(None, None, None)
dist.destroy_process_group()
"""


RAISES = """
import os, signal, sys, time
import torch.distributed as dist
import heartbeat
from launcher_summary import tell_of_end
heartbeat.BEAT_SECONDS, heartbeat.SILENT_SECONDS, heartbeat.GONE_SECONDS = 0.5, 6.0, 3.0
rank = int(os.environ["RANK"])
if sys.argv[2] == "raises":
    dist.init_process_group("gloo")
heartbeat.watch_others()
open(f"pid-{rank}", "w").write(str(os.getpid()))
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # in a collective of a GPU no handler of Python comes to its turn
while not os.path.exists(f"pid-{1 - rank}"):
    time.sleep(0.1)
with tell_of_end():
    if rank == int(sys.argv[1]):
        if sys.argv[2] == "raises":
            raise ValueError("row 3 is no text")
        sys.exit("row 3 is no text" if sys.argv[2] == "refuses" else 2)
    if sys.argv[2] != "raises":
        dist.init_process_group("gloo")  # the other never comes
    time.sleep(600)
"""


def start(folder: Path, seconds: float) -> subprocess.Popen[str]:
    (folder / "program.py").write_text(PROGRAM, encoding="utf-8")
    words = [TORCHRUN, "--standalone", "--local-addr=localhost", "--nproc-per-node", "2", "--shutdown-timeout", "3"]
    return subprocess.Popen(
        [*words, "program.py", str(seconds)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(FRAGMENTS), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def read_pids(folder: Path) -> list[int]:
    pids = [folder / f"pid-{n}" for n in range(2)]
    end = time.monotonic() + 200
    while not all(path.exists() and path.read_text() for path in pids) and time.monotonic() < end:
        time.sleep(0.2)
    return [int(path.read_text()) for path in pids]


def is_alive(pid: int) -> bool:
    """Not a zombie, whose parent is stopped."""
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.slow
@pytest.mark.core
@pytest.mark.parametrize("rank", [0, 1])
def test_a_stopped_process_is_named_and_none_is_left(rank, tmp_path):
    running = start(tmp_path, 600)
    numbers = read_pids(tmp_path)
    os.kill(numbers[rank], signal.SIGSTOP)
    output, _ = running.communicate(timeout=200)
    assert running.returncode
    summary = output.rpartition("Root Cause")[2]
    for text in (output, summary):
        assert f"rank {rank} (" in text and f"process {numbers[rank]}) has not answered for 6 s" in text
    assert not [pid for pid in numbers if Path(f"/proc/{pid}").exists()]


@pytest.mark.slow
@pytest.mark.core
@pytest.mark.parametrize("end", ["goes on", "aborts", "has not begun"])
def test_a_process_that_hangs_and_beats_is_named_with_the_line_it_is_in(end, tmp_path):
    """Nobody ends it; where a library aborts a process, the summary says what it had come to."""
    (tmp_path / "program.py").write_text(HANGS, encoding="utf-8")
    words = [TORCHRUN, "--standalone", "--local-addr=localhost", "--nproc-per-node", "4", "program.py"]
    environment = {**os.environ, "PYTHONPATH": str(FRAGMENTS), "OMP_NUM_THREADS": "1"}
    run = [*words, "90" if end == "aborts" else "9", end]
    ended = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert (ended.returncode == 0) == (end != "aborts"), ended.stderr
    before = "The training has not begun, and no process has left its place for "
    said = ended.stderr.split(before if end == "has not begun" else "No process has finished anything for ")[1:]
    assert said and " s. Where they are:" in said[0], ended.stderr
    first, _, others = said[0].splitlines()[1:4]
    assert first.startswith("  rank 2 (") and ": in hang_in_data (" in first and "program.py:" in first
    assert others.startswith("  ranks 0, 1, 3: waits for others in ") and "torch/distributed" in others
    cause = ended.stderr.rpartition("Root Cause")[2]
    assert end != "aborts" or ("No process has finished anything" in cause and "hang_in_data" in cause), ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("end", "cause"),
    [("raises", "ValueError: row 3 is no text"), ("refuses", "row 3 is no text"), ("exits", "exit code 2")],
)
def test_a_process_that_ends_with_an_error_ends_those_of_other_nodes(end, cause, rank, tmp_path):
    """A launcher on each. They wait for it in a collective, or for the group to be formed, and their own launcher sees
    nothing of it."""
    (tmp_path / "program.py").write_text(RAISES, encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = str(probe.getsockname()[1])
    words = ["--nproc-per-node", "1", "--shutdown-timeout", "3", "--master-addr", "localhost", "--master-port", port]
    nodes = [
        subprocess.Popen(
            [TORCHRUN, "--nnodes", "2", "--node-rank", str(node), *words, "program.py", str(rank), end],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(FRAGMENTS), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for node in range(2)
    ]
    numbers = read_pids(tmp_path)
    begun = time.monotonic()
    outputs = [node.communicate(timeout=200)[0] for node in nodes]
    assert time.monotonic() - begun < 60
    assert all(node.returncode for node in nodes)
    if end != "exits":  # why has been printed
        assert cause in outputs[rank].rpartition("Root Cause")[2]
    for text in (f"rank {rank} (", f"process {numbers[rank]}) has ended with an error: {cause}"):
        assert text in outputs[1 - rank].rpartition("Root Cause")[2], outputs[1 - rank]
    assert not [pid for pid in numbers if Path(f"/proc/{pid}").exists()]


@pytest.mark.slow
@pytest.mark.core
def test_where_the_store_answers_no_more_all_end(tmp_path):
    """As on a node that is cut off from the first: what it asks is neither answered nor refused."""
    running = start(tmp_path, 600)
    numbers = read_pids(tmp_path)
    os.kill(running.pid, signal.SIGSTOP)  # the launcher, which holds the store
    end = time.monotonic() + 60
    while any(map(is_alive, numbers)) and time.monotonic() < end:
        time.sleep(0.2)
    assert not [pid for pid in numbers if is_alive(pid)]
    os.kill(running.pid, signal.SIGKILL)
    output, _ = running.communicate(timeout=60)
    assert "rank 0 (" in output and "is cut off: the launcher's store at localhost has not answered for 6 s" in output


@pytest.mark.slow
@pytest.mark.core
def test_all_may_be_stopped_and_go_on(tmp_path):
    """As by `scontrol suspend`: longer than the silence that counts."""
    running = start(tmp_path, 4)
    numbers = [*read_pids(tmp_path), running.pid]
    for number in numbers:
        os.kill(number, signal.SIGSTOP)
    time.sleep(9)
    for number in numbers:
        os.kill(number, signal.SIGCONT)
    output, _ = running.communicate(timeout=200)
    assert running.returncode == 0 and "has not answered" not in output


@pytest.mark.slow
def test_a_process_that_ends_first_is_not_missed(tmp_path):
    output, _ = (running := start(tmp_path, 1)).communicate(timeout=200)
    assert running.returncode == 0 and "has not answered" not in output


IMPORTS = """
import quiet_imports
import os, sys, time
if os.environ["RANK"] == "1":
    import slow_disk
import heartbeat
heartbeat.BEAT_SECONDS, heartbeat.STARTING_SECONDS = 0.5, 8.0
heartbeat.watch_others()
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.core
def test_a_process_that_hangs_in_its_imports_is_named_and_says_where(tmp_path):
    text = (FRAGMENTS / "quiet_imports.py").read_text(encoding="utf-8")
    assert "IMPORT_SECONDS = 600.0" in text
    (tmp_path / "quiet_imports.py").write_text(text.replace("IMPORT_SECONDS = 600.0", "IMPORT_SECONDS = 5.0"))
    (tmp_path / "program.py").write_text(IMPORTS, encoding="utf-8")
    (tmp_path / "slow_disk.py").write_text("import time\ntime.sleep(600)\n", encoding="utf-8")
    words = [TORCHRUN, "--standalone", "--local-addr=localhost", "--nproc-per-node", "2", "--shutdown-timeout", "3"]
    environment = {**os.environ, "PYTHONPATH": str(FRAGMENTS), "OMP_NUM_THREADS": "1"}
    run = [*words, "program.py"]
    ended = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    cause = ended.stderr.rpartition("Root Cause")[2]
    assert "rank 1, beside rank 0 (" in cause and "), has not begun within 8 s: look at the log there." in cause
    assert re.search(r'slow_disk.py", line 2 in <module>\n  File "<frozen', ended.stderr), ended.stderr


ENDS = """
import os, sys
import heartbeat
from launcher_summary import tell_of_end
heartbeat.BEAT_SECONDS = 0.0005  # a thread is in the store at almost any moment
heartbeat.watch_others()
with tell_of_end():
    sys.exit(int(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.core
@pytest.mark.parametrize("code", [0, 143])
def test_a_process_ends_with_its_own_code(code, tmp_path):
    """Threads that come back from C++ while the interpreter ends abort it (SIGABRT)."""
    import torch.distributed as dist

    (tmp_path / "program.py").write_text(ENDS, encoding="utf-8")
    for _ in range(3):
        store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        more = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": str(store.port)}
        environment = {**os.environ, "PYTHONPATH": str(FRAGMENTS), "OMP_NUM_THREADS": "1", **more}
        ended = subprocess.run([sys.executable, "program.py", str(code)], cwd=tmp_path, env=environment, timeout=100)
        assert ended.returncode == code
