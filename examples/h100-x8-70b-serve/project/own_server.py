"""A server of this project that a program starts for itself, and that ends with it, however that ends."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

END_SECONDS = 20.0
"""For what is being answered; whatever is left of the server then is killed."""
PR_SET_PDEATHSIG = 1
"""of linux/prctl.h"""
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


@contextmanager
def run_server(here: Path, log: IO) -> Generator[tuple[str, subprocess.Popen]]:
    """`./serve.sh` on a free port of this machine: its address and its process. Ctrl-C does not reach it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        ["./serve.sh", "--host", "127.0.0.1", "--port", str(port)],
        cwd=here,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
        preexec_fn=ask_for_signal if LIBC else None,
    )
    try:
        yield f"http://127.0.0.1:{port}", process
    finally:
        end_server(process)


def ask_for_signal() -> None:
    """When the program that started it is killed, and can end nothing itself: on Linux."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def end_server(process: subprocess.Popen) -> None:
    """It, and what it started."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signum)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
            break
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
