"""Running one tool: C locale, own process group, own deadline."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time

from hwdetect.machine import Output, clean

GRACE_S = 0.2  # after a tool has ended, how long a child of it may still hold its pipe


def run_command(argv: tuple[str, ...], seconds: float) -> Output:
    """What the tool printed, or why there is nothing. Never longer than ``seconds`` (plus a fraction of a second)."""
    program = shutil.which(argv[0])
    if program is None:
        return Output(problem="not installed")
    if seconds <= 0:
        return Output(problem="no time left")
    try:
        process = subprocess.Popen(
            (program, *argv[1:]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "LC_ALL": "C", "LANG": "C", "LANGUAGE": "C"},
            start_new_session=True,
        )
    except OSError as error:
        return Output(problem=f"cannot be started: {error.strerror}")
    chunks: list[bytes] = []
    reader = threading.Thread(target=_drain, args=(process, chunks), daemon=True)
    reader.start()
    problem = _wait(process, reader, seconds)
    # A list may still grow behind us (a child that kept the pipe): join what is there now.
    text = clean(b"".join(tuple(chunks)))
    return Output(text=text if problem is None or text else None, code=process.poll(), problem=problem)


def _wait(process: subprocess.Popen, reader: threading.Thread, seconds: float) -> str | None:
    ends = time.monotonic() + seconds
    problem = None
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        problem = f"no answer within {seconds:.1f} s"
    else:
        reader.join(timeout=max(0.0, min(GRACE_S, ends - time.monotonic())))
    if problem or reader.is_alive():
        _kill_group(process)
        reader.join(timeout=GRACE_S)
    return problem


def _drain(process: subprocess.Popen, chunks: list[bytes]) -> None:
    assert process.stdout is not None
    with contextlib.suppress(OSError, ValueError):
        while chunk := os.read(process.stdout.fileno(), 1 << 16):
            chunks.append(chunk)


def _kill_group(process: subprocess.Popen) -> None:
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=GRACE_S)
