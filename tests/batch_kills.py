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


def kill_again_and_again(start, output: Path, seconds: float) -> int:
    """Start and SIGKILL until the job is done, twenty times at most, each time about the ``seconds`` after which a shard is sealed; after
    how many there was one. On a machine that has become slower meanwhile later ones wait longer."""
    moments, moved = random.Random(0), 0
    for _ in range(KILLS):
        before = len(list_parts(output))
        with start() as process:
            try:
                process.communicate(timeout=seconds * moments.uniform(0.6, 1.25))
                break  # done: on a machine that became faster a start gets farther than a shard
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
        gained = len(list_parts(output)) > before
        moved, seconds = moved + gained, seconds if gained else 1.1 * seconds
    return moved


def compare_killed_job(python: str | Path, project: Path, source: Path, folder: Path, flags: Sequence[str]) -> Path:
    """The output of a job that was killed twenty times, which has the bytes of that of one piece."""
    once, killed = folder / "once.jsonl", folder / "killed.jsonl"
    first = time_first_part(start_batch(python, project, source, once, *flags), once)
    assert kill_again_and_again(lambda: start_batch(python, project, source, killed, *flags), killed, first) > 0
    with start_batch(python, project, source, killed, *flags) as process:
        said = process.communicate(timeout=SECONDS)[1]
    assert process.returncode == 0 and "Traceback" not in said, said
    assert killed.read_bytes() == once.read_bytes() and not list_parts(killed)
    return killed
