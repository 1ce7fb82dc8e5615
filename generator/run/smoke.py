"""Run a generated project a few steps under its own clock, and set predicted against measured."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

from generator.case.tasks import find_task
from generator.case.workload import computes_rows
from generator.emit.place import lock_destination
from generator.errors import SmokeError, SourceError, escape_control
from generator.figures import format_figure
from generator.inputs.json_files import replace_file
from generator.progress import Say, choose_say, echo_json, tell_progress
from generator.run import report
from generator.run.comparison import SmokeResult, compare, format_lines
from generator.run.figures import InferFigures, RunFigures, read_figures
from generator.run.plan_file import FILE, HINT, read_plan
from generator.run.process import run_stage
from hwdetect.machine.process import isolate_python, run_process

STEPS = 8
LEAST_STEPS = 2
"""The first one warms up, and is not measured."""
SECONDS = 600
BUSY_SHARE = 0.5
"""of the processors, from which on a CPU's times say little"""
FOLDER = "smoke"
"""Under the project's runs/: the smoke run never touches the user's own runs."""

SMOKE_JOB = "sbatch train.sbatch --max_steps 8 --eval_strategy no --save_strategy no --output_dir runs/smoke"
"""What stands in for a smoke run where the plan is for several nodes (templates/project/README.md.jinja says it too)"""


def find_interpreter(folder: Path, asked: str | None) -> str:
    """The asked one, the project's own environment, or this one."""
    if asked:
        program = shutil.which(asked)
        if program is None:
            raise SourceError(f"--python {asked}: no such program")
        return os.path.abspath(program)  # noqa: PTH100  not where links lead: an environment is known by its own link
    own = folder / ".venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    return os.path.abspath(own) if own.exists() else sys.executable  # noqa: PTH100


def find_missing_modules(interpreter: str, folder: Path) -> list[str]:
    """Which distributions of the plan the interpreter lacks. No file of the working folder or the project has a say."""
    names = [r.split("==")[0] for r in load_plan(folder)["requirements"]]
    code = (
        "import sys\n"
        "sys.path[:] = [p for p in sys.path if p]\n"  # before Python 3.11 -c puts the working folder there
        "import importlib.metadata as m\n"
        "for n in sys.argv[1:]:\n"
        "    try: m.version(n)\n"
        "    except m.PackageNotFoundError: print(n)\n"
    )
    ended = run_process((interpreter, "-c", code, *names), 60, environment=isolate_python())
    if ended.problem:
        raise SmokeError(f"{interpreter} cannot be run: {ended.problem}", "--python names another one")
    return ended.raw.decode("utf-8", "replace").split() if ended.code == 0 else names


def load_plan(folder: Path) -> dict:
    plan = read_plan(
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
    check_commands(folder, plan)
    return plan


def check_commands(folder: Path, plan: dict) -> None:
    """That variables and the launcher can be those of a process. Raises ``SourceError``."""
    for name, _ in plan["edits"]["environment"]:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise SourceError(f"{folder / FILE}: edits.environment has {name!r}, which is no variable's name", HINT)
    hides, beside = plan["project"].get("hides_devices"), plan["project"].get("orders_devices") or ""
    if plan["visible_devices"] and not re.fullmatch(r"[A-Z_]+", str(hides)):
        raise SourceError(f"{folder / FILE}: project.hides_devices is {hides!r}, which is no variable's name", HINT)
    if not re.fullmatch(r"([A-Z_]+=[\w,]+ ?)*", beside):
        raise SourceError(f"{folder / FILE}: project.orders_devices is {beside!r}, which sets no variables", HINT)
    words = plan["parallel"]["launcher"] if plan["parallel"] else None
    if words is not None and words[:1] not in [[program] for program in LAUNCHERS]:
        raise SourceError(
            f"{folder / FILE}: parallel.launcher is {words}, which begins with none of {', '.join(LAUNCHERS)}", HINT
        )


def find_output(folder: Path, plan: dict) -> Path:
    """Where the smoke run writes: a folder that it may empty first. Raises ``SourceError`` for one outside the project.

    By name, not by where links lead: a user's own link of runs/ to a larger disk is theirs to make.
    """
    name = plan["config"].get("output_dir", "runs")
    outputs = Path(os.path.normpath(folder / name))
    if folder not in outputs.parents:
        raise SourceError(
            f"{folder / FILE}: config.output_dir is {name!r}, which lies outside the project: {outputs}",
            "a smoke run empties its folder in there first: give one inside the project",
        )
    return outputs / FOLDER


def run_command(folder: Path, *, steps: int, seconds: int, interpreter: str | None, as_json: bool) -> None:
    """The `perfgen smoke` command. Raises ``SmokeError`` (exit 6) naming what went wrong."""
    python = find_interpreter(folder, interpreter)
    missing = find_missing_modules(python, folder)
    if missing:
        raise SmokeError(f"{python} lacks {', '.join(missing)}", f"run `make setup` in {folder} first")
    result = run_project(folder, say=choose_say(as_json), steps=steps, seconds=seconds, python=python)
    if as_json:
        echo_json(result)


def try_project(folder: Path, say: Say) -> dict | None:
    """Run it if its interpreter has what it needs; otherwise say what it lacks."""
    interpreter = find_interpreter(folder, None)
    missing = find_missing_modules(interpreter, folder)
    if not missing:
        planned_seconds = load_plan(folder)["estimate"]["step_seconds"]
        steps = choose_steps(planned_seconds)
        if steps >= LEAST_STEPS:
            return run_project(folder, say=say, steps=steps)
        again = f"perfgen smoke {shlex.quote(str(folder))} --steps {LEAST_STEPS} --timeout SECONDS"
        say(f"smoke run: not done, a step is planned to take {format_figure(planned_seconds / 60)} minutes: `{again}`")
        return None
    lacks = f"{interpreter} lacks {', '.join(missing)}"
    say(f"smoke run: not done, {lacks}: `make setup`, then `perfgen smoke {folder}`")
    return None


def choose_steps(planned_seconds: float | None) -> int:
    """Nobody asked for this run: as many as half of its time holds by the plan, for it may be half as fast as that."""
    return min(STEPS, int(SECONDS / 2 / planned_seconds)) if planned_seconds else STEPS


def run_project(
    folder: Path, *, say: Say, steps: int = STEPS, seconds: int = SECONDS, python: str | None = None
) -> dict:
    """Train, then infer. The result is written to smoke.json and into report.html.

    Raises ``DestinationError`` where another smoke run of the project goes on: it would lose its files to this one.
    """
    folder = folder.resolve()
    plan = load_plan(folder)
    python = python or find_interpreter(folder, None)
    out = find_output(folder, plan)
    beside = describe_other_work(plan)
    with lock_destination(out):
        comparison = run_stages(plan, folder, out, steps, seconds, python)
    result = asdict(comparison)
    try:
        replace_file(folder / "smoke.json", json.dumps(result, indent=2, allow_nan=False) + "\n")
        report.add_smoke(folder / "report.html", result)
    except OSError as error:
        raise SmokeError(f"the run went well, but {error.filename or folder}: {error.strerror}") from error
    for line in format_lines(comparison, plan, beside):
        say(escape_control(line))
    return result


def describe_other_work(plan: dict) -> str:
    """What kept the processors busy on which the project computes, before anything of it was started; empty: nothing did."""
    if plan["project"]["device"] not in ("cpu", "portable") or not hasattr(os, "getloadavg"):
        return ""
    load, cpus = os.getloadavg()[0], os.cpu_count() or 1
    return f"as it began, other work wanted {load:.1f} of {cpus} CPUs" if load >= BUSY_SHARE * cpus else ""


def run_stages(plan: dict, folder: Path, out: Path, steps: int, seconds: int, python: str) -> SmokeResult:
    """What is left of an earlier smoke run in ``out`` goes first."""
    shutil.rmtree(out, ignore_errors=True)
    stages, run = [], None
    if plan["project"]["mode"] == "train":
        planned_seconds = plan["estimate"]["step_seconds"]
        tell_progress(f"smoke run: {steps} training steps, by the plan {format_figure(planned_seconds)} s each …")
        stages.append(run_stage("train", build_train_command(plan, python, steps, out), folder, plan, seconds))
        run = read_figures(RunFigures, out / "run.json", "train")
    tell_progress("smoke run: inference …")
    stages.append(run_stage("infer", build_infer_command(plan, python, out), folder, plan, seconds))
    return compare(plan, run, read_figures(InferFigures, out / "infer.json", "infer"), stages)


def build_train_command(plan: dict, python: str, steps: int, out: Path) -> tuple[str, ...]:
    flags = {"--max_steps": steps, "--output_dir": out, "--save_strategy": "no", "--logging_steps": 1}
    flags |= {"--eval_strategy": "no", "--report_to": "none"}  # a tracker is for the user's own runs
    words = [str(word) for flag in flags.items() for word in flag]
    return (*build_launch_words(plan, python), "train.py", *words)


def build_infer_command(plan: dict, python: str, out: Path) -> tuple[str, ...]:
    if computes_rows(plan["project"]["mode"], plan["project"]["task"]):  # of a sample that it makes
        return (python, "infer.py", "--report", str(out / "infer.json"))
    classifies = find_task(plan["project"]["task"]).classifies
    words = ["--prompt", "The quick brown fox" if classifies else "To be, or not"]
    words += ["--report", str(out / "infer.json")]
    if not classifies:
        words += ["--max_new_tokens", "16"]
    if plan["project"]["mode"] == "train":
        words += ["--model", str(out)]
    return (python, "infer.py", *words)


LAUNCHERS = {"torchrun": "torch.distributed.run", "accelerate": "accelerate.commands.accelerate_cli"}
"""The module behind each program: whichever interpreter runs the project has it."""


def build_launch_words(plan: dict, python: str) -> tuple[str, ...]:
    """The words before train.py: the interpreter, or the launcher of several processes. Raises ``SmokeError``."""
    parallel = plan["parallel"]
    if parallel is None:
        return (python,)
    if parallel["nodes"] > 1:
        raise SmokeError(
            f"the plan is for {parallel['nodes']} nodes, and a smoke run starts one",
            f"on the cluster: {SMOKE_JOB}",
        )
    program, *words = parallel["launcher"]
    return (python, "-m", LAUNCHERS[program], *words)
