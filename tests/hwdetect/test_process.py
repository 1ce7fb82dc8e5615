"""The one runner: by its own deadline, bounded, and nothing of a program's tree is left, whoever dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from hwdetect.machine import process

ROOT = Path(__file__).resolve().parents[2]
linux = pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_CHILD_SUBREAPER is Linux")
DAEMON = """
    import os, sys, time
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        with open(sys.argv[1], "w") as file:  # and keeps standard output
            file.write(f"{os.getpid()} ")
        if os.fork() == 0:
            os.setsid()
            with open(sys.argv[1], "a") as file:
                file.write(f"{os.getpid()} end")
        time.sleep(300)
    while "end" not in (open(sys.argv[1]).read() if os.path.exists(sys.argv[1]) else ""):
        time.sleep(0.01)
    print("started", flush=True)
    time.sleep(float(sys.argv[2]))
"""
"""A daemon with a child in a session of its own, both orphans as far as the kernel knows."""


def make_daemon(pids: Path, seconds: float) -> tuple[str, ...]:
    return (sys.executable, "-c", textwrap.dedent(DAEMON), str(pids), str(seconds))


def list_living(pids: Path) -> list[int]:
    """Those of the file that live, after the time that dying takes."""
    numbers = [int(word) for word in pids.read_text().split() if word.isdigit()]
    assert len(numbers) == 2
    ends = time.monotonic() + 3
    while (living := [pid for pid in numbers if is_running(pid)]) and time.monotonic() < ends:
        time.sleep(0.02)
    for pid in living:
        os.kill(pid, signal.SIGKILL)
    return living


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@linux
@pytest.mark.parametrize("seconds", [0, 300], ids=["that ends", "that hangs"])
def test_a_daemon_neither_stretches_the_time_nor_outlives_the_program(tmp_path, seconds):
    started = time.monotonic()
    ended = process.run_process(make_daemon(tmp_path / "pids", seconds), 4)
    assert time.monotonic() - started < 8
    assert ended.raw == b"started\n"
    assert (ended.code, ended.problem) == ((-9, "no answer within 4.0 s") if seconds else (0, None))
    assert not list_living(tmp_path / "pids")


RUNS = """
    import signal, sys
    from hwdetect.machine.process import run_process
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what it leaves running with Ctrl-C ignored
    run_process(tuple(sys.argv[1:]), 300)
"""


@linux
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_the_tree_ends_with_us(tmp_path, number):
    pids = tmp_path / "pids"
    command = [sys.executable, "-c", textwrap.dedent(RUNS), *make_daemon(pids, 300)]
    ours = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    while not pids.exists() or "end" not in pids.read_text():
        assert ours.poll() is None
        time.sleep(0.02)
    ours.send_signal(number)
    ours.wait(timeout=10)
    assert not list_living(pids)


@linux
def test_a_supervisor_that_is_killed_is_named_and_takes_the_program_along(tmp_path):
    pid = tmp_path / "pid"
    code = "import os, signal, sys; open(sys.argv[1], 'w').write(str(os.getpid())); os.kill(os.getppid(), 9); signal.pause()"
    ended = process.run_process((sys.executable, "-c", code, str(pid)), 20)
    assert ended.problem == "its supervisor was killed" and ended.code is None
    ends = time.monotonic() + 5
    while is_running(int(pid.read_text())):
        assert time.monotonic() < ends
        time.sleep(0.02)


@linux
def test_a_context_that_is_left_by_an_error_leaves_nothing_running(tmp_path):
    lines = process.Lines()
    with pytest.raises(ZeroDivisionError), process.Program(make_daemon(tmp_path / "pids", 300), output=lines.add):
        assert next(lines.read(10)) == "started"
        raise ZeroDivisionError
    assert not list_living(tmp_path / "pids")


FLOOD = """
    import resource, sys
    from hwdetect.machine.process import HeadAndTail, run_process
    code = "import sys; print('first'); [sys.stdout.write('x' * 1000000) for _ in range(%s)]; print('last')"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ended = run_process((sys.executable, "-c", code % sys.argv[1]), 120, output=HeadAndTail(1 << 20, 1 << 20))
    assert ended.problem is None and ended.code == 0, ended.problem
    assert ended.raw.startswith(b"first") and ended.raw.endswith(b"last\\n") and b" bytes left out]" in ended.raw
    assert len(ended.raw) < 3 << 20
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss in KiB")
@pytest.mark.parametrize("megabytes", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_output_without_end_costs_no_memory(megabytes):
    command = [sys.executable, "-c", textwrap.dedent(FLOOD), str(megabytes)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 16 << 10, "KiB more than before"


def test_head_and_tail_lose_nothing_that_fits():
    kept = process.HeadAndTail(10, 10)
    for chunk in (b"0123", b"456789ab", b"", b"cdefghij"):
        assert kept.add(chunk)
    assert kept.join() == b"0123456789abcdefghij"
    kept.add(b"k")
    assert kept.join() == b"0123456789\n[1 bytes left out]\nbcdefghijk"
    for _ in range(100):
        kept.add(b"0123456")
    assert kept.join() == b"0123456789\n[701 bytes left out]\n4560123456"


def test_lines_come_as_they_are_printed_and_end_in_time():
    lines = process.Lines()
    code = "import time; print('a', flush=True); print('b\\nc', end='', flush=True); time.sleep(60)"
    started = time.monotonic()
    with process.Program((sys.executable, "-c", code), output=lines.add) as program:
        assert list(lines.read(2)) == ["a", "b", "c"]
        assert program.wait(0) == (-9, "no answer within 0.0 s")
    assert time.monotonic() - started < 6


@pytest.mark.parametrize(
    ("command", "code", "problem"),
    [
        (("/bin/sh", "-c", "exit 7"), 7, None),
        (("/bin/sh", "-c", "kill -SEGV $$"), -signal.SIGSEGV, None),
        (("/no/such/program",), None, "cannot be started: No such file or directory"),
        (("/",), None, "cannot be started: Permission denied"),
        (("/bin/sh", "a\0b"), None, "cannot be started: embedded null byte"),
    ],
)
def test_how_a_program_ends(command, code, problem):
    ended = process.run_process(command, 20)
    assert (ended.raw, ended.code, ended.problem) == (b"", code, problem)


def test_a_program_that_cannot_run_in_its_folder(tmp_path):
    ended = process.run_process(("/bin/sh", "-c", ":"), 20, folder=tmp_path / "none")
    assert ended.problem == "cannot be started: No such file or directory"


def test_input_and_errors_of_any_size_hang_nothing():
    code = "import sys; text = sys.stdin.read(); sys.stderr.write(text); print(len(text))"
    ended = process.run_process((sys.executable, "-c", code), 60, given=b"x" * (1 << 20), errors=subprocess.PIPE)
    assert ended.raw == b"1048576\n" and len(ended.errors) > 1 << 17 and b"left out" in ended.errors


def test_a_broken_pipe_ends_a_program_as_in_a_shell():
    """Python ignores SIGPIPE, and what it starts would inherit that."""
    ended = process.run_process(("/bin/sh", "-c", "(yes; echo $? >&2) | head -1"), 20, errors=subprocess.STDOUT)
    assert sorted(ended.raw.decode().splitlines()) == [str(128 + signal.SIGPIPE), "y"]  # two programs wrote


@pytest.mark.parametrize("value", ["", ".", ":", ":/nowhere", "/nowhere:", "here", "./here:/nowhere"])
def test_no_entry_of_the_python_path_means_the_working_folder(tmp_path, monkeypatch, value):
    for folder in (tmp_path, tmp_path / "here"):
        folder.mkdir(exist_ok=True)
        for name in ("json", "sitecustomize", "torch"):
            (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'CANARY')!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", value)
    monkeypatch.setenv("PYTHONSTARTUP", str(tmp_path / "torch.py"))
    monkeypatch.setenv("PYTHONINSPECT", "1")
    code = "import sys, json; print(sys.path)"
    for folder in (process.NOWHERE, tmp_path):  # also where the folder is the one that it must not read
        ended = process.run_process(
            (sys.executable, "-P", "-c", code), 60, environment=process.isolate_python(), folder=folder
        )
        assert ended.code == 0 and str(tmp_path) not in ended.raw.decode(), ended.raw
        assert ("/nowhere" in ended.raw.decode()) == ("/nowhere" in value)
    assert not (tmp_path / "CANARY").exists()


def test_a_tool_of_the_working_folder_is_not_run(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n: > {tmp_path}/CANARY\n")
    tool.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    for path in (".", "", f":{tmp_path}/none", "../" + tmp_path.name):
        monkeypatch.setenv("PATH", path)
        assert process.run_command(("nvidia-smi",), 5).problem == "not installed"
        assert not (tmp_path / "CANARY").exists()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert process.run_command(("nvidia-smi",), 20).code == 0  # named in full, it is the user's own
    assert (tmp_path / "CANARY").exists()
