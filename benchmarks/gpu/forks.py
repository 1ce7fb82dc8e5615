"""Many projects at a time, each in forks of one process that has their libraries and has not started CUDA."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from unittest import mock

from benchmarks.forks import become_script, run_in_fork

IMPORTED = ("torch", "transformers.trainer", "transformers.generation", "datasets", "peft", "trl", "matplotlib.figure")
"""before the first fork: what the scripts take seconds for, and what starts no CUDA"""


def import_libraries() -> str | None:
    """Why no fork of this process could use its GPU, or ``None``. Without CUDA started here, forks may start it."""
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # cuInit here would end CUDA in every fork

    import torch
    from torch.utils import _triton

    on_gpu = torch.cuda.is_available()
    with (  # bitsandbytes and torchao ask as they are imported
        mock.patch.object(torch.cuda, "get_device_capability", read_capability),
        mock.patch.object(_triton, "has_triton", lambda: on_gpu),
    ):
        for name in IMPORTED:
            with suppress(ImportError):
                importlib.import_module(name)
    if not on_gpu:
        return None
    pid = os.fork()
    if not pid:
        try:
            torch.zeros(1, device="cuda")
        except BaseException:
            os._exit(1)
        os._exit(0)
    return "CUDA does not start in a fork" if os.waitpid(pid, 0)[1] else None


def read_capability(device: object = None) -> tuple[int, int]:
    """Of the first GPU, without CUDA."""
    import pynvml

    pynvml.nvmlInit()
    return tuple(pynvml.nvmlDeviceGetCudaComputeCapability(pynvml.nvmlDeviceGetHandleByIndex(0)))


def run_rows(
    rows: list[dict], together: int, measure: Callable[[dict], dict], folder: Path, until: float, limit: float
) -> Iterator[tuple[dict, dict]]:
    """Each row with what ``measure`` returned in a fork, or the reason why it did not; ``until`` is of time.monotonic()."""
    waiting, running = list(rows), {}
    while waiting or running:
        while waiting and len(running) < together and until - time.monotonic() > 0:
            row = waiting.pop(0)
            file = folder / f"{len(waiting)}.json"
            file.unlink(missing_ok=True)
            running[start(measure, row, file)] = (row, file, time.monotonic())
        if not running:
            return
        for pid, (row, file, started) in list(running.items()):
            taken = time.monotonic() - started
            cut = time.monotonic() > until
            if cut or taken > limit:
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            elif not os.waitpid(pid, os.WNOHANG)[0]:
                continue
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
            del running[pid]
            result = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
            killed = {"error": f"killed after {taken:.0f} s", **({"cut_short": True} if cut and taken < limit else {})}
            yield row, result or killed
        time.sleep(0.05)


def start(measure: Callable[[dict], dict], row: dict, file: Path) -> int:
    pid = os.fork()
    if pid:
        with suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, pid)
        return pid
    try:
        with suppress(PermissionError):
            os.setpgid(0, 0)
        result = measure(row)
        draft = file.with_suffix(".tmp")
        draft.write_text(json.dumps(result), encoding="utf-8")
        draft.replace(file)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def run_forked(project: Path, words: list[str]) -> str:
    """What a script of ``project`` prints. Raises ``CalledProcessError`` with it."""
    log = project / "fork.log"
    code = run_in_fork(lambda: become_script(project, words), log)
    output = log.read_text(encoding="utf-8", errors="replace")
    if code:
        raise subprocess.CalledProcessError(code, [sys.executable, *words], output)
    return output
