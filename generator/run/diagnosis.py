"""What went wrong in a run, in words, and what to do."""

from __future__ import annotations

import re
import shlex
import signal
from pathlib import Path

from generator.figures import format_figure
from generator.run.stage import Stage

CAUSES = (
    (r"CUDA out of memory|OutOfMemoryError|DefaultCPUAllocator: can't allocate|MemoryError", "out of memory"),
    (r"No space left on device|Disk quota exceeded", "the disk is full"),
    (
        r"failed to map segment from shared object",
        "a folder for compiled code is mounted noexec (TMPDIR names another)",
    ),
    (r"ModuleNotFoundError|ImportError", "a package is missing"),
    (r"no usable text|no trainable token|fewer than one global batch|is smaller than one", "no data"),
    (
        r"LocalEntryNotFoundError|OfflineModeIsEnabled|We couldn't connect|ConnectionError|ProxyError|SSLError",
        "no network",
    ),
    (r"non-finite|NaN|nan loss", "the loss is not finite"),
    (r"This plan was made for", "another machine than planned"),
)


STEP = re.compile(r"^step +(\d+)/(\d+) ", re.MULTILINE)
"""how a project logs a step (templates/fragments/progress.py)"""

LAUNCHERS_REPORT = re.compile(r"torch/distributed/elastic/\S+ (?:Sending process|failed \(exitcode)")
"""where torchrun begins to say which process ended, after what that process said"""


def diagnose(done: Stage, seconds: int, folder: Path, planned_seconds: float) -> tuple[str, str]:
    """What went wrong, in words, and what to do; the end of the output is part of it.

    ``planned_seconds`` of a step tell a run that is slow from one that hangs.
    """
    tail = "\n".join(line[:300] for line in list_own_lines(done.output)[-12:])
    shown = f"the last it said:\n{tail}" if tail else "it said nothing"
    if done.returncode is None:
        steps = STEP.findall(done.output)
        state = f"too slow: {steps[-1][0]} of {steps[-1][1]} steps" if steps else "hung: not done"
        planned = f" ({format_figure(planned_seconds)} s a step were planned)" if steps else ""
        return (
            f"{done.name}: {state} after {seconds} s{planned}, killed with all its processes",
            f"{shown}\n  `perfgen smoke {shlex.quote(str(folder))} --timeout SECONDS` gives it longer",
        )
    if done.returncode in (-signal.SIGKILL, 137):
        return f"{done.name}: killed from outside (SIGKILL): out of memory on the host is the usual cause", shown
    cause = next(
        (words for pattern, words in CAUSES if re.search(pattern, done.output)), f"crashed (exit {done.returncode})"
    )
    return f"{done.name}: {cause}", shown


def list_own_lines(output: str) -> list[str]:
    """Without the launcher's report of two dozen lines, which names no cause; all lines where there is nothing before it."""
    lines = output.strip().splitlines()
    ended = next((place for place, line in enumerate(lines) if LAUNCHERS_REPORT.search(line)), 0)
    return lines[:ended] or lines
