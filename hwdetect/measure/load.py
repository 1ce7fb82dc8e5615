"""How much others compute on the CPUs of this process while something is timed: figures of a busy machine are none."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

STAT = Path("/proc/stat")
MOST_SHARE = 0.1
"""of the CPUs that this process may use: above it others are in the way (ours: best of several runs still finds a quiet moment)"""
MOST_STOLEN = 0.02
"""of their time, by the host below a virtual machine"""
LEAST_SECONDS = 0.1
"""that are worth a share: the kernel counts in hundredths"""


class Load:
    """Filled when the block of ``watch_load`` ends. ``share``: of the time of these CPUs that others computed; ``stolen``: that a
    host took. ``None`` where the kernel does not say (macOS, Windows)."""

    share: float | None = None
    stolen: float | None = None

    def describe(self) -> str | None:
        """Why what was timed meanwhile is no figure, or ``None``."""
        if self.stolen is not None and self.stolen > MOST_STOLEN:
            return f"busy: the host below this machine took {self.stolen:.0%} of its time"
        if self.share is not None and self.share > MOST_SHARE:
            return f"busy: other programs took {self.share:.0%} of its CPUs' time"
        return None


@contextmanager
def watch_load(stat: Path = STAT) -> Generator[Load]:
    """What others did while the block ran. What it starts itself must have ended with it."""
    load = Load()
    before, own, started = read_ticks(stat), read_own_seconds(), time.perf_counter()
    yield load
    after = read_ticks(stat)
    elapsed = time.perf_counter() - started
    if before is None or after is None or elapsed < LEAST_SECONDS:
        return
    busy, stolen = (later - earlier for earlier, later in zip(before, after, strict=True))
    capacity = elapsed * count_cpus()
    load.share = max(0.0, busy - (read_own_seconds() - own)) / capacity
    load.stolen = stolen / capacity


def read_ticks(stat: Path) -> tuple[float, float] | None:
    """Seconds that the CPUs of this process computed so far, and that were stolen from them."""
    try:
        lines = stat.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    allowed = {f"cpu{number}" for number in list_cpus()}
    rows = [[float(n) for n in line.split()[1:9]] for line in lines if line.split(" ", 1)[0] in allowed]
    if not rows or any(len(row) < 8 for row in rows):
        return None
    hertz = os.sysconf("SC_CLK_TCK")
    # user, nice, system, idle, iowait, irq, softirq, steal (proc_stat(5))
    busy = sum(row[0] + row[1] + row[2] + row[5] + row[6] for row in rows)
    return busy / hertz, sum(row[7] for row in rows) / hertz


def read_own_seconds() -> float:
    """CPU time of this process and of those that it started, once they have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def list_cpus() -> set[int]:
    return set(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def count_cpus() -> int:
    return len(list_cpus())
