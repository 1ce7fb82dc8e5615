"""Every stage in order: read → case → decide → document → render → place → run. Read this first.

Files are read at the start and written at the end; what lies between is a pure function of frozen values.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
from generator.emit.asked import find_config_edits, merge_requests, record_request, restore_request
from generator.emit.base import check_project, find_base, read_origin
from generator.emit.changes import Change, compare_plans
from generator.emit.document import build_document
from generator.emit.drift import find_drift
from generator.emit.emitted import FOLDER, Tree, add_record, read_tree, write_tree
from generator.emit.landing import finish_landing, is_interrupted, land_files, list_removals, list_writes, lock_project
from generator.emit.offers import describe_goal
from generator.emit.outcomes import Kind, Outcome, check_markers, decide_outcomes, list_differences
from generator.emit.packing import format_packing, pack_project
from generator.emit.plan_document import GoalRecord, PlanDocument
from generator.emit.plan_json import to_json
from generator.emit.render import render
from generator.emit.sources import PlacedSource, keep_sources, link_sources, place_sources
from generator.errors import ConflictError, DestinationError, DriftError, UsageError, escape_control
from generator.inputs.hardware import read_hardware
from generator.progress import is_quiet, tell_detail, time_stage
from generator.run.lock import lock_packages
from generator.run.plan_file import FILE, read_document, read_object
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


def document_request(request: Request, name: str | None = None, *, for_project: bool = False) -> PlanDocument:
    """The plan document of a request. ``name`` is the project's, if it has one. ``for_project``: one will be made of it, so what
    none can be made of is refused."""
    planned = plan_request(request)
    if for_project:
        check_emittable(planned)
    return replace(build_document(planned, name), request=record_request(request, None))


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
        document = read_document(folder)
        for edit in find_config_edits(read_config(folder), read_object(folder / FILE)):
            click.echo(f"perfgen: {escape_control(edit)}", err=True)
        return document
    if request.model is None:
        click.echo("perfgen: no --model, and no project here: this is about the embedded sample model", err=True)
    return document_request(request)


def write_project(
    request: Request,
    dest: Path,
    *,
    smoke: bool,
    dry_run: bool,
    diff: bool,
    full: bool,
    overwrite: bool,
    yes: bool,
    as_json: bool,
    lock: bool = False,
) -> None:
    """`perfgen init`: plan, render beside the destination, check, land, smoke-run."""
    if lock and (dry_run or diff):
        raise UsageError("--lock writes what it is told by an index and a registry: not with --dry-run or --diff")
    target = place.resolve_destination(dest, overwrite or dry_run or diff)
    say = click.echo if not as_json else (lambda text="", **_: click.echo(text, err=True))
    if dest.is_symlink():
        say(f"{dest} is a link: writing to {target}")
    looks = dry_run or diff
    replaces = overwrite and not looks and target.exists() and any(target.iterdir())
    if replaces and not yes and not (sys.stdin and sys.stdin.isatty()):
        raise UsageError(f"--overwrite replaces {target}, and nobody can be asked here", "--yes replaces it unasked")
    with nullcontext() if looks else place.lock_destination(target):
        write_to(target, request, say, smoke, dry_run, diff, full, overwrite, yes, as_json, lock)


def write_to(
    target: Path,
    request: Request,
    say: Callable,
    smoke: bool,
    dry_run: bool,
    diff: bool,
    full: bool,
    overwrite: bool,
    yes: bool,
    as_json: bool,
    lock: bool,
) -> None:
    """The rest of `perfgen init`, where nobody else writes to ``target``."""
    planned = plan_request(request)
    check_emittable(planned)
    placed = place_sources(planned.work, target)
    document = build_document(planned, name=target.name, dest=target)
    document = replace(document, request=record_request(request, target))
    if not as_json and not diff:
        from generator.show.terminal import show_plan

        show_plan(document)
    plan = to_json(document)
    with place.make_scratch() if diff or dry_run else place.make_staging(target) as stage:
        tree = read_tree(stage, render(plan, stage))
        if diff:
            return show_drift(plan, tree, target, full, as_json, say)
        write_tree(stage, add_record(tree))
        files = sorted(add_record(tree))
        result = {"schema": 1, "dest": str(target), "files": files, "plan": plan, "smoke": None}
        if dry_run:
            result["written"] = False
            say(f"\nwould write {len(files)} files to {target}:")
            for path in files:
                say(f"  {path}")
            if as_json:
                click.echo(json.dumps(result, indent=2, ensure_ascii=False, allow_nan=False))
            return
        if lock:
            say("\nlocking: every package by its hash, the base image by its digest")
            result["plan"], files = lock_packages(stage, say), sorted([*files, "requirements.lock"])
            result["files"] = files
        if overwrite and not yes and target.exists() and any(target.iterdir()):
            click.confirm(f"replace {target} (the old folder is kept beside it)?", abort=True, err=True)
        refused = link_sources(placed, stage)
        backup = place.land_tree(stage, target, overwrite)
    say(f"\nwrote {len(files)} files to {target}")
    if backup:
        say(f"the old folder is {backup}")
        for name in keep_sources(placed, backup, target):
            say(f"{name} stays in the new one")
    for name, origin in refused:
        say(f"no link could be made there: copy {origin} to {target / name}")
    packing = pack_project(document, placed, target, files)
    result["packing"] = to_json(packing)
    if smoke:
        result["smoke"] = smoke_run(request, target, say)
    if as_json:
        click.echo(json.dumps(result, indent=2, ensure_ascii=False, allow_nan=False))
    elif document.project.elsewhere:
        say("\n".join(format_packing(packing, document)))
    else:
        verb = "train" if request.mode == "train" else "infer"
        next_steps = f"next: cd {shlex.quote(str(target))} && make setup && make {verb}   (PLAN.md has the reasons)"
        (say if not is_quiet() else tell_detail)(next_steps)


def show_drift(plan: dict, tree: Tree, target: Path, full: bool, as_json: bool, say: Callable) -> None:
    """`init --diff`: words, then files; with ``full`` their lines. Raises ``DriftError`` (exit 7) where a file differs."""
    from generator.show import differences

    old = read_object(target / FILE) if (target / FILE).is_file() else None
    changes, drift = compare_plans(old, plan) if old else (), find_drift(target, tree)
    differences.show_update((), changes, drift, say)
    if full:
        say("".join(list_differences(target, drift)), nl=False)
    report: dict[str, Any] = {"schema": 1, "dest": str(target), "files": sorted(tree), "smoke": None, "written": False}
    listed = differences.to_json(changes, drift, plan)
    report |= {"changes": listed["changes"], "differences": listed["files"], "plan": plan}
    count = sum(outcome.kind is not Kind.SAME for outcome in drift)
    if count:
        raise DriftError(f"{count} of {len(tree)} files differ from what would be written", report=report)
    say("no difference")
    if as_json:
        click.echo(json.dumps(report, indent=2, ensure_ascii=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What `perfgen update` would do to the project ``target``."""

    target: Path
    request: Request
    plan: dict[str, Any]
    base: Tree
    new: Tree
    rejects: bool
    changes: tuple[Change, ...]
    outcomes: tuple[Outcome, ...]
    notes: tuple[str, ...]
    placed: tuple[PlacedSource, ...] = ()

    @property
    def conflicts(self) -> list[str]:
        return [outcome.name for outcome in self.outcomes if outcome.kind is Kind.CONFLICT]


def update_project(
    today: Request,
    folder: Path,
    *,
    forget: tuple[str, ...],
    conflict: str,
    smoke: bool,
    dry_run: bool,
    full: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """`perfgen update`: plan again for what the project was asked for, say what differs, merge, land, smoke-run."""
    from generator.show import differences

    target = check_project(folder)
    say = click.echo if not as_json else (lambda text="", **_: click.echo(text, err=True))
    if not (yes or dry_run or (sys.stdin.isatty() and sys.stderr.isatty())):
        raise UsageError("update asks before it writes, and nobody can answer here", "give --yes, or --dry-run to look")
    with nullcontext() if dry_run else lock_project(target):
        if dry_run and is_interrupted(target):
            raise DestinationError(
                f"an update of {target} was broken off", "`perfgen update` without --dry-run finishes it"
            )
        for name in () if dry_run else finish_landing(target):
            say(f"{name} was changed after the update that was broken off: it stays, the new version is beside it")
        update = plan_update(today, target, forget, conflict == "rej")
        differences.show_update(update.notes, update.changes, update.outcomes, say)
        if full:
            say("".join(list_differences(target, update.outcomes)), nl=False)
        landed = None if dry_run else land_update(update, yes, say)
    result = {"schema": 1, "dest": str(target)} | differences.to_json(update.changes, update.outcomes, update.plan)
    result |= {"written": landed is not None, "backup": landed or None, "smoke": None}
    if landed is not None and smoke and not update.conflicts:
        result["smoke"] = smoke_run(update.request, target, say)
    elif landed is not None and smoke:
        say("smoke run: not done, conflicts come first")
    if update.conflicts and not dry_run:
        raise ConflictError(f"conflicts in {', '.join(update.conflicts)}", "settle them there", report=result)
    if as_json:
        click.echo(json.dumps(result, indent=2, ensure_ascii=False))


def plan_update(today: Request, target: Path, forget: tuple[str, ...], rejects: bool) -> Update:
    """The project as it would be planned and rendered today, merged with what stands there. Nothing is written."""
    old = read_object(target / FILE)
    base = find_base(target, old)
    check_markers(target, base.tree)
    request, dropped = merge_requests(restore_request(old, target, (*today.given, *forget)), today, forget)
    planned = plan_request(request)
    check_emittable(planned)
    document = build_document(planned, name=read_name(old, target), dest=target)
    plan = to_json(replace(document, request=record_request(request, target)))
    with place.make_scratch() as stage:
        new = add_record(read_tree(stage, render(plan, stage, read_origin(target).template)))
    of_another = f"dropped, being of what is now another: {', '.join(dropped)}" if dropped else ""
    return Update(
        target=target,
        request=request,
        plan=plan,
        base=base.tree,
        new=new,
        rejects=rejects,
        changes=compare_plans(old, plan),
        outcomes=decide_outcomes(target, base.tree, new, rejects),
        placed=place_sources(planned.work, target),
        notes=tuple(filter(None, (base.note, of_another, *find_config_edits(read_config(target), old)))),
    )


def land_update(update: Update, yes: bool, say: Callable) -> str | None:
    """Write it, after asking; where the old files are ("" for no old ones), ``None`` if there was nothing to do."""
    writes, removals = list_writes(update.outcomes), list_removals(update.outcomes)
    count = len({name for name in (*writes, *removals) if not name.startswith(f"{FOLDER}/")})
    if not writes and not removals:
        say("nothing to do: the project is what would be written today")
        return None
    if not yes:
        click.confirm(f"change {count} files of {update.target}?", abort=True, err=True)
    if decide_outcomes(update.target, update.base, update.new, update.rejects) != update.outcomes:
        raise DestinationError(f"{update.target} was changed meanwhile", "nothing was written: run it again")
    backup = land_files(update.target, writes, removals)
    for name, origin in link_sources(update.placed, update.target):
        say(f"no link could be made there: copy {origin} to {update.target / name}")
    say(f"\nchanged {count} files of {update.target}" + (f"; as they were: {backup}" if backup else ""))
    return str(backup or "")


def read_config(target: Path) -> dict:
    """The project's config.yaml; empty where there is none that can be read: only its edits are looked at."""
    import yaml

    try:
        config = yaml.safe_load((target / "config.yaml").read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return config if isinstance(config, dict) else {}


def read_name(plan: Mapping, target: Path) -> str:
    """The project's name, which moving its folder does not change."""
    project = plan.get("project")
    name = project.get("name") if isinstance(project, Mapping) else None
    return name if isinstance(name, str) else target.name


def smoke_run(request: Request, target: Path, say: Callable) -> dict | None:
    """Run it where it can run here; otherwise say what was not done."""
    from generator.run import smoke

    if request.hardware is not None:
        parallel = smoke.load_plan(target)["parallel"]
        there = smoke.SMOKE_JOB if parallel and parallel["nodes"] > 1 else "perfgen smoke"
        say(f"smoke run: not done, the plan is for another machine (`{there}` runs it there)")
        return None
    interpreter = smoke.find_interpreter(target, None)
    missing = smoke.find_missing_modules(interpreter, target)
    if missing:
        say(
            f"smoke run: not done, {interpreter} lacks {', '.join(missing)}: `make setup`, then `perfgen smoke {target}`"
        )
        return None
    return smoke.run_project(target, say=say)
