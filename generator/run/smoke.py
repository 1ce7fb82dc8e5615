"""Run a generated project a few steps under its own clock, and set predicted against measured."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click

from generator.errors import SmokeError, SourceError
from generator.run import report
from generator.run.comparison import compare, format_lines
from generator.run.plan_file import read_plan
from generator.run.process import run_stage

STEPS = 8
SECONDS = 600
FOLDER = "smoke"
"""Under the project's runs/: the smoke run never touches the user's own runs."""


def find_interpreter(folder: Path, asked: str | None) -> str:
    """The asked one, the project's own environment, or this one."""
    if asked:
        if shutil.which(asked) is None:
            raise SourceError(f"--python {asked}: no such program")
        return asked
    own = folder / ".venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    return str(own) if own.exists() else sys.executable


def find_missing_modules(interpreter: str, folder: Path) -> list[str]:
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


def run_command(folder: Path, *, steps: int, seconds: int, interpreter: str | None, as_json: bool) -> None:
    """The `perfgen smoke` command. Raises ``SmokeError`` (exit 6) naming what went wrong."""
    python = find_interpreter(folder, interpreter)
    missing = find_missing_modules(python, folder)
    if missing:
        raise SmokeError(f"{python} lacks {', '.join(missing)}", f"run `make setup` in {folder} first")
    result = run_project(
        folder, say=lambda t="", **_: click.echo(t, err=as_json), steps=steps, seconds=seconds, python=python
    )
    if as_json:
        click.echo(json.dumps(result, indent=2))


def run_project(
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
            *start_words(plan, python),
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
        stages.append(run_stage("train", command, folder, plan, seconds))
    say("smoke run: inference …")
    probe = "The quick brown fox" if plan["project"]["task"] == "text-classification" else "To be, or not"
    model = ("--model", str(out)) if plan["project"]["mode"] == "train" else ()
    length = () if plan["project"]["task"] == "text-classification" else ("--max_new_tokens", "16")
    stages.append(run_stage("infer", (python, "infer.py", *model, "--prompt", probe, *length), folder, plan, seconds))
    result = compare(plan, out, stages)
    try:
        (folder / "smoke.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        report.add_smoke(folder / "report.html", result)
    except OSError as error:
        raise SmokeError(f"the run went well, but {error.filename or folder}: {error.strerror}") from error
    for line in format_lines(result):
        say(line)
    return result


LAUNCHERS = {"torchrun": "torch.distributed.run", "accelerate": "accelerate.commands.accelerate_cli"}
"""The module behind each program: whichever interpreter runs the project has it."""


def start_words(plan: dict, python: str) -> tuple[str, ...]:
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
