"""Run a generated project a few steps under its own clock, and set predicted against measured."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from generator import report
from generator.errors import SmokeError, SourceError, masked
from generator.sources import read_plan

STEPS = 8
SECONDS = 600
FOLDER = "smoke"
"""Under the project's runs/: the smoke run never touches the user's own runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    name: str
    command: tuple[str, ...]
    returncode: int | None
    """``None``: it ran out of time and was killed"""
    seconds: float
    output: str


def find_interpreter(folder: Path, asked: str | None) -> str:
    """The asked one, the project's own environment, or this one."""
    if asked:
        if shutil.which(asked) is None:
            raise SourceError(f"--python {asked}: no such program")
        return asked
    own = folder / ".venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    return str(own) if own.exists() else sys.executable


def missing_modules(interpreter: str, folder: Path) -> list[str]:
    """Which distributions of the plan the interpreter lacks."""
    names = [r.split("==")[0] for r in load_plan(folder)["requirements"]]
    code = (
        "import sys, importlib.metadata as m\n"
        "for n in sys.argv[1:]:\n"
        "    try: m.version(n)\n"
        "    except m.PackageNotFoundError: print(n)\n"
    )
    command = [interpreter, "-c", code, *names]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SmokeError(f"{interpreter} cannot be run: {error}", "--python names another one") from error
    return done.stdout.split() if done.returncode == 0 else names


def load_plan(folder: Path) -> dict:
    return read_plan(
        folder,
        "project",
        "config",
        "edits",
        "estimate",
        "choice",
        "case",
        "versions",
        "requirements",
        "parallel",
        "visible_devices",
    )


def run(folder: Path, *, steps: int, seconds: int, interpreter: str | None, as_json: bool) -> None:
    """The `perfgen smoke` command. Raises ``SmokeError`` (exit 6) naming what went wrong."""
    python = find_interpreter(folder, interpreter)
    missing = missing_modules(python, folder)
    if missing:
        raise SmokeError(f"{python} lacks {', '.join(missing)}", f"run `make setup` in {folder} first")
    result = run_quietly(
        folder, say=lambda t="", **_: click.echo(t, err=as_json), steps=steps, seconds=seconds, python=python
    )
    if as_json:
        click.echo(json.dumps(result, indent=2))


def run_quietly(
    folder: Path, *, say: Callable, steps: int = STEPS, seconds: int = SECONDS, python: str | None = None
) -> dict:
    """Train, then infer. The result is written to smoke.json and into report.html."""
    folder = folder.resolve()
    plan = load_plan(folder)
    python = python or find_interpreter(folder, None)
    out = folder / plan["config"]["output_dir"] / FOLDER
    shutil.rmtree(out, ignore_errors=True)
    stages = []
    if plan["project"]["mode"] == "train":
        command = (
            *starting(plan, python),
            "train.py",
            "--max_steps",
            str(steps),
            "--output_dir",
            str(out),
            "--save_strategy",
            "no",
            "--logging_steps",
            "1",
        )
        say(f"smoke run: {steps} training steps …")
        stages.append(stage("train", command, folder, plan, seconds))
    say("smoke run: inference …")
    probe = "The quick brown fox" if plan["project"]["task"] == "text-classification" else "To be, or not"
    model = ("--model", str(out)) if plan["project"]["mode"] == "train" else ()
    length = () if plan["project"]["task"] == "text-classification" else ("--max_new_tokens", "16")
    stages.append(stage("infer", (python, "infer.py", *model, "--prompt", probe, *length), folder, plan, seconds))
    result = compare(plan, out, stages)
    try:
        (folder / "smoke.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        report.add_smoke(folder / "report.html", result)
    except OSError as error:
        raise SmokeError(f"the run went well, but {error.filename or folder}: {error.strerror}") from error
    for line in lines(result):
        say(line)
    return result


LAUNCHERS = {"torchrun": "torch.distributed.run", "accelerate": "accelerate.commands.accelerate_cli"}
"""The module behind each program: whichever interpreter runs the project has it."""


def starting(plan: dict, python: str) -> tuple[str, ...]:
    """The words before train.py: the interpreter, or the launcher of several processes. Raises ``SmokeError``."""
    parallel = plan["parallel"]
    if parallel is None:
        return (python,)
    if parallel["nodes"] > 1:
        raise SmokeError(
            f"the plan is for {parallel['nodes']} nodes, and a smoke run starts one",
            "on the cluster: sbatch train.sbatch --max_steps 8 --save_strategy no",
        )
    program, *words = parallel["launcher"]
    return (python, "-m", LAUNCHERS[program], *words)


def stage(name: str, command: tuple[str, ...], folder: Path, plan: dict, seconds: int) -> Stage:
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
    for child in descendants(process.pid):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(child, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    import psutil

    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


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


def diagnose(done: Stage, seconds: int) -> tuple[str, str]:
    """What went wrong, in words, and what to do; the end of the output is part of it."""
    tail = "\n".join(line[:300] for line in done.output.strip().splitlines()[-12:])
    shown = f"the last it said:\n{tail}" if tail else "it said nothing"
    if done.returncode is None:
        return (
            f"{done.name}: hung: not done after {seconds} s, killed with all its processes",
            f"{shown}\n  --timeout gives it longer",
        )
    if done.returncode in (-signal.SIGKILL, 137):
        return f"{done.name}: killed from outside (SIGKILL): out of memory on the host is the usual cause", shown
    cause = next(
        (words for pattern, words in CAUSES if re.search(pattern, done.output)), f"crashed (exit {done.returncode})"
    )
    return f"{done.name}: {cause}", shown


def compare(plan: dict, out: Path, stages: list[Stage]) -> dict:
    """Predicted against measured, in the form of benchmarks/results."""
    rows = []
    measured: dict = {}
    if plan["project"]["mode"] == "train":
        measured = read_run(out)
        predicted = plan["estimate"]
        for what, unit, ours, theirs in (
            ("step time", "s", predicted["step_seconds"], measured["step_seconds"]),
            ("tokens/s", "1/s", predicted["tokens_per_second"], measured["tokens_per_second"]),
            ("peak memory", "GiB", memory_prediction(plan), measured["peak_memory_gib"]),
        ):
            rows.append(
                {
                    "what": what,
                    "unit": unit,
                    "predicted": ours,
                    "measured": theirs,
                    "ratio": theirs / ours if ours else None,
                }
            )
    return {
        "schema": 1,
        "technique": plan["choice"],
        "device": plan["project"]["machine"],
        "host": {"machine": platform.machine(), "python": platform.python_version()},
        "versions": measured.get("versions", plan["versions"]),
        "model": plan["case"]["model"]["name"],
        "workload": plan["case"]["workload"],
        "commands": [[Path(s.command[0]).name, *s.command[1:]] for s in stages],
        "stage_seconds": {s.name: round(s.seconds, 2) for s in stages},
        "losses": measured.get("losses", []),
        "repeats": measured.get("steps", []),
        "comparison": rows,
        "answer": masked(answer(stages[-1].output)),
    }


def read_run(out: Path) -> dict:
    """What train.py measured. Raises ``SmokeError``."""
    path = out / "run.json"
    try:
        measured = json.loads(path.read_text(encoding="utf-8"))
        missing = {"step_seconds", "tokens_per_second", "peak_memory_gib"} - measured.keys()
    except (OSError, ValueError, AttributeError) as error:
        raise SmokeError(f"train: ended well, but left no readable {path}: {error}") from error
    if missing:
        raise SmokeError(f"train: {path} lacks {', '.join(sorted(missing))}")
    return measured


def answer(output: str) -> str:
    """What infer.py printed after its line of speed, else the last line."""
    _, found, text = output.rpartition("tokens/s\n")
    lines = text.strip().splitlines() if found else output.strip().splitlines()[-1:]
    return " / ".join(lines)[:300]


def memory_prediction(plan: dict) -> float:
    """What the measuring call sees: the process on a CPU, the allocator's peak on a GPU."""
    estimate = plan["estimate"]
    return estimate["peak_memory_gib"] if plan["project"]["device"] != "cuda" else estimate["allocator_peak_gib"]


def lines(result: dict) -> list[str]:
    found = [f"{'':14}{'predicted':>12}{'measured':>12}   ratio"]
    for row in result["comparison"]:
        ratio = f"{row['ratio']:.2f}" if row["ratio"] else "-"
        found.append(f"{row['what']:<14}{row['predicted']:>12.4g}{row['measured']:>12.4g}   {ratio}  ({row['unit']})")
    if result["losses"]:
        found.append(f"loss {result['losses'][0]:.3f} → {result['losses'][-1]:.3f} over {len(result['losses'])} steps")
    return found
