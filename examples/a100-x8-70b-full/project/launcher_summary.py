"""What ends this process, for the summary of torchrun: that is printed last, below all that the processes said."""

import json
import os
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch.distributed as dist

from masking import mask_secrets

FAILURES: list[str] = []
"""What this process ends with, for those of other nodes (heartbeat.py)."""
HEARD: list[str] = []
"""Of another process, and why: what follows here has its cause there."""
STANDSTILL: list[str] = []
"""Where all processes are, since the training does not move (standstill.py)."""
HEARD_SECONDS = 5.0
"""Until it is known on other nodes that a process is gone (liveness.py)."""
OF_OTHERS = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer")
"""In an error that the end of another process makes."""


def tell_launcher(message: str) -> None:
    FAILURES.append(message)
    write_summary(message)


def note_standstill(message: str) -> None:
    """Empty: it goes on. Where a library gives up meanwhile it may abort the process, which then says nothing more."""
    STANDSTILL[:] = [message] if message else []
    if not FAILURES:
        write_summary(message)


def write_summary(message: str) -> None:
    """Another launcher than torchrun has no such file."""
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if file and message:
        failure = {"message": mask_secrets(message), "extraInfo": {"timestamp": str(int(time.time()))}}
        with suppress(OSError):  # a full disk: what ends the run is another thing
            Path(file).write_text(json.dumps({"message": failure}), encoding="utf-8")
    elif file:
        Path(file).unlink(missing_ok=True)


@contextmanager
def tell_of_end() -> Generator[None, None, None]:
    """Not of what follows from the end of another process: the summary is to name that."""
    try:
        yield
    except SystemExit as end:
        if isinstance(end.code, str):
            tell_launcher(end.code)
        elif end.code:  # why has been printed
            FAILURES.append(f"exit code {end.code}")
        raise
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        if not isinstance(error, dist.DistError) and not any(word in str(error) for word in OF_OTHERS):
            tell_launcher(message)
        elif await_cause():
            tell_launcher(HEARD[0])
            sys.exit(HEARD[0])
        elif STANDSTILL:  # it waited for another process until the libraries gave that up
            tell_launcher(f"{message}\n{STANDSTILL[0]}")
        else:
            FAILURES.append(message)
        raise


def await_cause() -> bool:
    """Whether another process has been named: of another node, a moment after it is missed here."""
    end = time.monotonic() + HEARD_SECONDS
    elsewhere = os.environ.get("LOCAL_WORLD_SIZE") != os.environ.get("WORLD_SIZE")
    while not HEARD and elsewhere and time.monotonic() < end:
        time.sleep(0.1)
    return bool(HEARD)
