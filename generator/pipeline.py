"""Every stage in order: read → case → decide → document → render → place → run. Read this first.

Files are read at the start and written at the end; what lies between is a pure function of frozen values.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import click

from generator.case.devices import make_portable_case
from generator.case.request import Request, check_text
from generator.case.sources import read_work
from generator.decide.device_group import choose_case
from generator.decide.goal import Target, check_target, find_offers, use_machine, use_whole_machine
from generator.decide.lengths import note_lengths
from generator.decide.notes import collect_notes
from generator.decide.plan import Planned
from generator.decide.serving import plan_case
from generator.decide.unemitted import check_emittable
from generator.emit import place
from generator.emit.document import build_document
from generator.emit.drift import show_diff
from generator.emit.offers import describe_goal
from generator.emit.plan_document import GoalRecord, PlanDocument
from generator.emit.plan_json import to_json
from generator.emit.render import render
from generator.inputs.hardware import read_hardware
from generator.progress import is_quiet, tell_detail, time_stage
from generator.run.plan_file import read_document
from generator.show.reading import list_reading_lines


def plan_request(request: Request) -> Planned:
    """Read the machine, the model and the data, and decide. Raises ``PerfgenError`` for whatever a user can cause."""
    check_text(request)
    with time_stage("read the machine"):
        hardware = read_hardware(request.hardware, request.measure)
    with time_stage("read model and data"):
        work = read_work(request)
    for line in list_reading_lines(hardware, work):
        tell_detail(line)
    spec, workload = work.spec, work.workload
    with time_stage("decided"):
        case = make_portable_case(spec, workload) if hardware is None else choose_case(hardware, spec, workload)
        plan = plan_case(case)
    notes = (*collect_notes(work, plan.case, plan.notes), *note_lengths(work, plan))
    return Planned(work=work, plan=plan, notes=notes)


def document_request(request: Request, name: str | None = None) -> PlanDocument:
    """The plan document of a request. ``name`` is the project's, if it has one."""
    return build_document(plan_request(request), name)


def find_machine(request: Request, target: Target, say: Callable[[str], None]) -> tuple[Request, GoalRecord]:
    """The request on the rented machine that meets ``target`` best, and all that meet it. Raises ``NothingFits``."""
    check_target(target, request)
    check_text(request)
    request = use_whole_machine(request)
    work = read_work(request)
    offers = find_offers(work.spec, work.workload, target, say)
    return use_machine(request, offers[0]), describe_goal(offers, target)


def load_document(folder: Path | None, request: Request) -> PlanDocument:
    """The plan document of a generated project, else of the request."""
    if folder is None and request.model is None and Path("plan.json").is_file():
        folder = Path()
    if folder is not None:
        return read_document(folder)
    if request.model is None:
        click.echo("perfgen: no --model, and no project here: this is about the embedded sample model", err=True)
    return document_request(request)


def write_project(
    request: Request, dest: Path, *, smoke: bool, dry_run: bool, diff: bool, overwrite: bool, yes: bool, as_json: bool
) -> None:
    """`perfgen init`: plan, render beside the destination, check, land, smoke-run."""
    target = place.resolve_destination(dest, overwrite or dry_run or diff)
    say = click.echo if not as_json else (lambda text="", **_: click.echo(text, err=True))
    if dest.is_symlink():
        say(f"{dest} is a link: writing to {target}")
    planned = plan_request(request)
    check_emittable(planned)
    document = build_document(planned, name=target.name)
    if not as_json:
        from generator.show.terminal import show_plan

        show_plan(document)
    plan = to_json(document)
    with place.make_scratch() if diff or dry_run else place.make_staging(target) as stage:
        files = render(plan, stage)
        result = {"schema": 1, "dest": str(target), "files": [str(p) for p in files], "plan": plan, "smoke": None}
        if diff or dry_run:
            result["written"] = False
        if diff:
            show_diff(stage, target, files, say)
        elif dry_run:
            say(f"\nwould write {len(files)} files to {target}:")
            for path in files:
                say(f"  {path}")
        if diff or dry_run:
            if as_json:
                click.echo(json.dumps(result, indent=2, ensure_ascii=False, allow_nan=False))
            return
        if overwrite and not yes and target.exists() and any(target.iterdir()):
            click.confirm(f"replace {target} (the old folder is kept beside it)?", abort=True, err=True)
        backup = place.land_tree(stage, target, overwrite)
    say(f"\nwrote {len(files)} files to {target}")
    if backup:
        say(f"the old folder is {backup}")
    if smoke:
        result["smoke"] = smoke_run(request, target, say)
    if as_json:
        click.echo(json.dumps(result, indent=2, ensure_ascii=False, allow_nan=False))
    else:
        verb = "train" if request.mode == "train" else "infer"
        (say if not is_quiet() else tell_detail)(
            f"next: cd {target} && make setup && make {verb}   (PLAN.md has the reasons)"
        )


def smoke_run(request: Request, target: Path, say: Callable) -> dict | None:
    """Run it where it can run here; otherwise say what was not done."""
    from generator.run import smoke

    if request.hardware is not None:
        say("smoke run: not done, the plan is for another machine (`perfgen smoke` runs it there)")
        return None
    interpreter = smoke.find_interpreter(target, None)
    missing = smoke.find_missing_modules(interpreter, target)
    if missing:
        say(
            f"smoke run: not done, {interpreter} lacks {', '.join(missing)}: `make setup`, then `perfgen smoke {target}`"
        )
        return None
    return smoke.run_project(target, say=say)
