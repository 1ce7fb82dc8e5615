"""Programs of a project whose standard streams are closed, or read by nobody: a clean end, and no traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from leaves import FRAGMENTS
from serving_projects import ANSWERS, ASKING, BATCH, BENCH, SERVER, make_serving_project, make_tiny_model

pytest.importorskip("uvicorn", reason="uvicorn, on which the server runs, is not installed")
SECONDS = 240
BATCH_WORDS = ("batch.py", "--input", "in.txt", "--output")
PROGRAMS = {
    "infer": ("infer.py", "--prompt", "Hello"),
    "batch": BATCH_WORDS,
    "chat": ("chat.py",),
    "help": ("bench.py", "--help"),
    "bench": ("bench.py", "--quick", "--prompt_tokens", "8", "--new_tokens", "4", "--within", "60"),
}


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("streams")
    modules = BATCH | ANSWERS | SERVER | BENCH | ASKING | {"chat": "serving/chat"}
    made = make_serving_project(folder / "p", make_tiny_model(folder / "m"), modules, port=9)
    (made / "in.txt").write_text("a\nb\nc\n")
    return made


def start(project: Path, words: tuple[str, ...], redirect: str, **streams) -> subprocess.Popen:
    """By a shell: it alone can close a stream of what it starts."""
    command = ["sh", "-c", f'exec "$@" {redirect}', "sh", sys.executable, *words]
    quiet = {"HF_HUB_OFFLINE": "1", "PYTHON": sys.executable, "OMP_WAIT_POLICY": "PASSIVE"}
    return subprocess.Popen(command, cwd=project, env=os.environ | quiet, **streams)


def make_unread_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def list_words(name: str, tmp_path: Path) -> tuple[str, ...]:
    return (*PROGRAMS[name], str(tmp_path / "out.jsonl")) if name == "batch" else PROGRAMS[name]


def list_servers(project: Path) -> list[str]:
    found = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout.splitlines()
    pids = [line.split()[0] for line in found if "server.py" in line]
    return [pid for pid in pids if os.path.realpath(f"/proc/{pid}/cwd") == str(project)]


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_pipe_that_nobody_reads_is_no_traceback(project, tmp_path, name):
    writer = make_unread_pipe()
    process = start(
        project, list_words(name, tmp_path), "", stdin=subprocess.PIPE, stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    _, said = process.communicate("Hello", timeout=SECONDS)
    assert process.returncode in (0, 1) and "Traceback" not in said and "BrokenPipe" not in said, said
    assert not list_servers(project)
    if name == "batch":
        assert (tmp_path / "out.jsonl").read_text().count("\n") == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["infer", "batch", "chat", "help"])
def test_nobody_reads_what_is_said_on_standard_error(project, tmp_path, name):
    writer = make_unread_pipe()
    process = start(
        project, list_words(name, tmp_path), "", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=writer, text=True
    )
    os.close(writer)
    process.communicate("Hello", timeout=SECONDS)
    assert process.returncode in (0, 1) and not list_servers(project)


@pytest.mark.slow
@pytest.mark.parametrize("redirect", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("name", ["infer", "batch", "chat"])
def test_streams_that_were_never_open(project, tmp_path, name, redirect):
    process = start(
        project,
        list_words(name, tmp_path),
        redirect,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    answer, said = process.communicate("Hello", timeout=SECONDS)
    assert "Traceback" not in said and "Exception" not in said, said
    asked_nothing = name == "chat" and "<&-" in redirect
    assert process.returncode == asked_nothing, said
    assert not asked_nothing or redirect != "<&-" or "nothing was asked" in said
    if name == "batch":
        assert (tmp_path / "out.jsonl").read_text().count("\n") == 3
    assert bool(answer) == (name != "batch" and ">&-" not in redirect.split() and not asked_nothing)


@pytest.mark.slow
def test_nothing_piped_starts_no_server(project):
    started = time.monotonic()
    process = start(project, ("chat.py",), "", stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    _, said = process.communicate(" \n", timeout=SECONDS)
    assert process.returncode == 1 and said.startswith("nothing was asked") and "starting" not in said
    assert time.monotonic() - started < 60


@pytest.mark.slow
def test_a_server_goes_on_without_its_log(project):
    """`./serve.sh 2>&1 | head -1`, and SIGTERM ends it as ever."""
    import httpx

    reader, writer = os.pipe()
    process = start(project, ("server.py", "--port", "0"), "", stderr=writer, stdout=subprocess.DEVNULL)
    os.close(writer)
    with os.fdopen(reader) as log:
        url = next(line for line in log if line.startswith("http")).split("/v1")[0]
    end = time.monotonic() + SECONDS
    while httpx.get(f"{url}/health").status_code != 200:
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.1)
    body = {"model": "test", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    for _ in range(3):
        assert httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).status_code == 200
        assert httpx.post(f"{url}/v1/chat/completions", content=b"{", timeout=60).status_code == 400
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_a_closed_number_goes_to_no_file(tmp_path):
    """The next file that is opened had it, and what others wrote to standard error stood in that."""
    code = f"""
import argparse, os, sys
sys.path.insert(0, {str(FRAGMENTS)!r})
from terminal import parse_flags
parse_flags(argparse.ArgumentParser())
kept = open({str(tmp_path / "kept")!r}, "w")
os.write(2, b"said by a library") if kept.fileno() != 2 else kept.write("lost")
print("said", file=sys.stderr, flush=True)
kept.close()
"""
    done = subprocess.run(["sh", "-c", '"$0" -c "$1" <&- >&- 2>&-', sys.executable, code], timeout=SECONDS)
    assert done.returncode == 0 and (tmp_path / "kept").read_text() == ""
