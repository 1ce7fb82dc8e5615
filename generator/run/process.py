"""Processes of a smoke run: started under a clock, none left behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from generator.errors import SmokeError
from generator.run.diagnosis import diagnose
from generator.run.stage import Stage


def run_stage(name: str, command: tuple[str, ...], folder: Path, plan: dict, seconds: int) -> Stage:
    """Run one command to its end or its time, and leave no process behind. Raises ``SmokeError`` when it failed."""
    environment = os.environ | dict(plan["edits"]["environment"]) | {"HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    if plan["visible_devices"]:
        environment |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": plan["visible_devices"]}
    started = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=die_with_parent if sys.platform == "linux" else None,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
        code: int | None = process.returncode
    except subprocess.TimeoutExpired:
        kill_group(process)
        output, _ = process.communicate()
        code = None
    except BaseException:
        kill_group(process)
        raise
    finally:
        kill_group(process)
    done = Stage(name=name, command=command, returncode=code, seconds=time.monotonic() - started, output=output)
    if code != 0:
        raise SmokeError(*diagnose(done, seconds))
    return done


def die_with_parent() -> None:
    """In the child, before exec: be killed when perfgen dies (Linux prctl PR_SET_PDEATHSIG = 1)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def kill_group(process: subprocess.Popen) -> None:
    """Also those that a launcher started: torchrun gives each its own session."""
    for child in list_descendants(process.pid):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(child, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def list_descendants(pid: int) -> list[int]:
    import psutil

    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []
