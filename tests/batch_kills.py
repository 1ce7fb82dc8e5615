"""batch.py ended by SIGKILL again and again, beside the same job in one piece."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

KILLS = 20
SECONDS = 900


def start_batch(python: str | Path, project: Path, source: Path, output: Path, *flags: str) -> subprocess.Popen:
    command = [python, project / "batch.py", "--input", source, "--output", output, *flags]
    quiet = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}  # threads that wait leave the core to other programs
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=source.parent, env=quiet)


def list_parts(output: Path) -> list[Path]:
    return list(output.with_name(f"{output.name}.parts").glob("part-*"))


def time_first_part(process: subprocess.Popen, output: Path) -> float:
    """Seconds until a shard was sealed, of a job that is not interrupted; it is waited for."""
    began, first = time.monotonic(), 0.0
    with process:
        while process.poll() is None:
            if not first and list_parts(output):
                first = time.monotonic() - began
            time.sleep(0.02)
        assert process.returncode == 0, process.communicate()[1]
    return first


def compare_killed_job(python: str | Path, project: Path, source: Path, folder: Path, flags: Sequence[str]) -> Path:
    """The output of a job that was killed twenty times, which has the bytes of that of one piece."""
    once, killed = folder / "once.jsonl", folder / "killed.jsonl"
    seconds = time_first_part(start_batch(python, project, source, once, *flags), once)
    moments, kills, moved = random.Random(0), 0, 0
    while kills < KILLS or not moved:
        before = len(list_parts(killed))
        with start_batch(python, project, source, killed, *flags) as process:
            try:
                said = process.communicate(timeout=seconds * moments.uniform(0.6, 1.25))[1]
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                kills += 1
            else:  # a start gets farther than a shard: done before the last kill, and begun anew
                check_finished(process, said, killed, once)
                killed.unlink()
                seconds *= 0.8
                continue
        gained = len(list_parts(killed)) - before
        moved += gained > 0
        if gained != 1:  # the machine has become slower meanwhile, or faster
            seconds *= 1.1 if gained < 1 else 0.9
    with start_batch(python, project, source, killed, *flags) as process:
        check_finished(process, process.communicate(timeout=SECONDS)[1], killed, once)
    return killed


def check_finished(process: subprocess.Popen, said: str, killed: Path, once: Path) -> None:
    assert process.returncode == 0 and "Traceback" not in said, said
    assert killed.read_bytes() == once.read_bytes() and not list_parts(killed)
