"""A trial of a search: train.py in a process of its own, watched, ended early, and what is kept of it."""

import ctypes
import fcntl
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import optuna
from optuna.trial import TrialState

from evaluation import METRICS
from progress import format_duration

HERE = Path(__file__).resolve().parent
ENDED = (TrialState.COMPLETE, TrialState.PRUNED)
"""Trials that say something of their values."""
KEPT = ("run.json", "loss.svg", "log.txt")
"""Of a trial that is not the best: its weights would fill the disk."""
EVALUATION = re.compile(r"step +(\d+)/\d+  evaluation: (.*)")
"""As progress.py prints it."""
DIVERGED = re.compile(r"step \d+: non-finite .*")
"""As stopping.py ends a training."""
HELD: dict[Path, IO] = {}
"""Files that are locked while this process runs their trial."""
SET_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG, prctl(2)"""


class Outcome(NamedTuple):
    state: TrialState
    text: str
    value: float | None = None


@contextmanager
def hold(lock: Path) -> Generator[None]:
    """One process at a time; whoever ends, however, holds it no longer."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def hold_trial(folder: Path, number: int) -> None:
    """Until this process ends: others see that the trial is being run."""
    path = folder / f"trial-{number}.lock"
    file = path.open("w")
    fcntl.flock(file, fcntl.LOCK_EX)
    HELD[path] = file


def release_trial(folder: Path, number: int) -> None:
    path = folder / f"trial-{number}.lock"
    HELD.pop(path).close()
    path.unlink()


def is_held(folder: Path, number: int) -> bool:
    path = folder / f"trial-{number}.lock"
    if path in HELD:
        return True
    try:
        with path.open("r") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


class Judge(NamedTuple):
    """By which ``metric`` of evaluations; ``best`` is ``min`` or ``max`` where the training keeps its best model."""

    metric: str
    best: Callable | None
    prune: bool


def run_trial(trial: optuna.Trial, given: dict, flags: Sequence[str], folder: Path, judge: Judge) -> Outcome:
    """Train with the values ``given``, to the end or until it is plainly worse than others were."""
    target = folder / f"trial-{trial.number}"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    values = {"output_dir": target, "save_strategy": "no", "load_best_model_at_end": False} | given
    command = [*find_command(), *(f"--{name}={value}" for name, value in values.items()), *flags]
    begun = time.perf_counter()
    last, pruned_at, diverged = "", None, None
    with (
        (target / "log.txt").open("w", encoding="utf-8") as log,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            preexec_fn=end_with_parent,
        ) as process,
    ):
        output = process.stdout or ()
        try:
            for line in output:
                log.write(line)
                log.flush()
                last = line.strip() or last
                diverged = diverged or DIVERGED.match(line)  # behind it a launcher of several processes has its say
                step = report_evaluation(trial, line, judge.metric)
                if judge.prune and step and pruned_at is None and trial.should_prune():
                    pruned_at = step
                    process.terminate()  # train.py ends after its step, with the processes of the other devices
        except BaseException:  # Ctrl-C, SIGTERM: it has had the same signal, or gets it now
            process.terminate()
            log.writelines(output)
            raise
    if process.returncode == 0:
        rows = read_evaluations(target)
        if not rows:
            return Outcome(TrialState.FAIL, "no evaluation after its first step: give --eval_steps behind --")
        if judge.metric not in rows[-1]:
            measured = ", ".join(name for name in METRICS if name in rows[-1])
            return Outcome(TrialState.FAIL, f"its evaluations have {measured}, and no {judge.metric}")
        values = [row[judge.metric] for row in rows]
        value = judge.best(values) if judge.best else values[-1]  # of the model that the training would keep
        return Outcome(TrialState.COMPLETE, format_duration(time.perf_counter() - begun), value)
    if pruned_at is not None:
        return Outcome(TrialState.PRUNED, f"ended at step {pruned_at}: worse than half of the others there")
    if diverged:
        return Outcome(TrialState.PRUNED, diverged[0])
    return Outcome(TrialState.FAIL, f"{last} (exit code {process.returncode}; {target / 'log.txt'})")


def find_command() -> list[str]:
    """What starts a training here: on several devices their launcher."""
    launcher = HERE / "train.sh"
    return ["sh", str(launcher)] if launcher.is_file() else [sys.executable, str(HERE / "train.py")]


def end_with_parent() -> None:
    """A search that is killed leaves no training behind, where the kernel can see to it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, signal.SIGTERM)


def report_evaluation(trial: optuna.Trial, line: str, metric: str) -> int | None:
    """Tell the study what an evaluation found, if the line is one; its step. Before the first step all are alike."""
    match = EVALUATION.match(line)
    value = match and re.search(rf"(?:^|  ){re.escape(METRICS[metric])} (\S+)", match[2])
    if not match or not value or match[1] == "0":
        return None
    trial.report(float(value[1]), int(match[1]))
    return int(match[1])


def read_evaluations(folder: Path) -> list[dict]:
    """Those of a training that has ended, but the one before its first step."""
    run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    return [row for row in run.get("evaluations", ()) if row["step"]]


def keep_report(folder: Path, number: int) -> None:
    """Remove the weights of a trial."""
    target = folder / f"trial-{number}"
    for path in target.iterdir() if target.is_dir() else ():
        if path.name in KEPT:
            continue
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
