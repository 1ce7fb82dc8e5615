"""Running one tool: C locale, own process group, own deadline, and no more output than a tool can honestly have."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hwdetect.machine.folder import decode_text
from hwdetect.machine.protocol import Output

GRACE_S = 0.2  # after a tool has ended, how long a child of it may still hold its pipe
MAX_OUTPUT_BYTES = 8 << 20  # the most that an honest tool says (rocm-smi -a of eight boards) is under 1 MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedProcess:
    """What a process wrote, its exit code (negative: the signal) and what is wrong, ``None`` if it ended by itself."""

    raw: bytes
    code: int | None
    problem: str | None


def build_own_command(module: str, *arguments: str) -> tuple[str, ...]:
    """The command that runs ``main`` of one of our modules in a new Python.

    Neither the working folder's files nor ours can stand in for a module of Python itself (``-P``, and last of the path).
    """
    here = str(Path(__file__).resolve().parents[2])
    code = f"import sys; sys.path.append({here!r}); from {module} import main; main(sys.argv[1:])"
    return (sys.executable, "-P", "-c", code, *arguments)


def run_command(argv: tuple[str, ...], seconds: float) -> Output:
    """What the tool printed, or why there is nothing. Never longer than ``seconds`` (plus a fraction of a second)."""
    program = shutil.which(argv[0])
    if program is None:
        return Output(problem="not installed")
    if seconds <= 0:
        return Output(problem="no time left")
    ended = run_process((program, *argv[1:]), seconds, stderr=subprocess.STDOUT)
    text = decode_text(ended.raw)
    return Output(text=text if ended.problem is None or text else None, code=ended.code, problem=ended.problem)


def run_process(
    command: tuple[str, ...], seconds: float, *, stderr: int = subprocess.DEVNULL, environment: Mapping[str, str] = {}
) -> EndedProcess:
    """Run a program in the C locale; it is killed with its whole group when its time is over or it floods us."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, "LC_ALL": "C", "LANG": "C", "LANGUAGE": "C", **environment},
            start_new_session=True,
        )
    except OSError as error:
        return EndedProcess(raw=b"", code=None, problem=f"cannot be started: {error.strerror}")
    chunks: list[bytes] = []
    reader = threading.Thread(target=_drain, args=(process, chunks), daemon=True)
    reader.start()
    problem = _wait(process, reader, chunks, seconds)
    # A list may still grow behind us (a child that kept the pipe): join what is there now.
    kept = tuple(chunks)
    if sum(map(len, kept)) > MAX_OUTPUT_BYTES:
        return EndedProcess(raw=b"", code=process.poll(), problem=f"more than {MAX_OUTPUT_BYTES >> 20} MiB of output")
    return EndedProcess(raw=b"".join(kept), code=process.poll(), problem=problem)


def _wait(process: subprocess.Popen, reader: threading.Thread, chunks: list[bytes], seconds: float) -> str | None:
    """Wait for the end of the output or of the time; a problem is that the process had to be stopped."""
    ends = time.monotonic() + seconds
    problem = None
    while reader.is_alive() and process.poll() is None and time.monotonic() < ends:
        reader.join(timeout=min(0.05, max(0.0, ends - time.monotonic())))
    try:
        # A flood has ended the reader: what writes on gets a broken pipe, or ignores it and is killed.
        process.wait(timeout=max(0.0, min(ends - time.monotonic(), GRACE_S if _has_overflowed(chunks) else seconds)))
    except subprocess.TimeoutExpired:
        problem = f"no answer within {seconds:.1f} s"
    else:
        reader.join(timeout=max(0.0, min(GRACE_S, ends - time.monotonic())))
    if problem or reader.is_alive():
        _kill_group(process)
        reader.join(timeout=GRACE_S)
    return problem


def _has_overflowed(chunks: list[bytes]) -> bool:
    return sum(map(len, chunks)) > MAX_OUTPUT_BYTES


def _drain(process: subprocess.Popen, chunks: list[bytes]) -> None:
    assert process.stdout is not None
    size = 0
    with contextlib.suppress(OSError, ValueError), process.stdout:
        while size <= MAX_OUTPUT_BYTES and (chunk := os.read(process.stdout.fileno(), 1 << 16)):
            chunks.append(chunk)
            size += len(chunk)


def _kill_group(process: subprocess.Popen) -> None:
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=GRACE_S)
