"""Every stage in order: read → case → decide → document → render → place → run. Read this first.

Files are read at the start and written at the end; what lies between is a pure function of frozen values. `perfgen update`
(update.py) plans and documents by the same stages, and merges in the place of place.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from generator.case.devices import make_portable_case
from generator.case.request import Request, check_lengths, check_text, check_used
from generator.case.sources import read_work
from generator.decide.device_group import choose_case
from generator.decide.goal import (
    Target,
    check_target,
    find_offers,
    list_concurrencies,
    use_machine,
    use_whole_machine,
)
from generator.decide.lengths import note_lengths
from generator.decide.notes import collect_notes
from generator.decide.plan import Planned
from generator.decide.serving import plan_case
from generator.decide.unemitted import check_emittable, refuse_machine
from generator.emit import place
from generator.emit.asked import find_config_edits, record_request
from generator.emit.document import build_document
from generator.emit.emitted import Tree, add_record, read_tree, write_tree
from generator.emit.offers import describe_goal
from generator.emit.packing import format_packing, pack_project
from generator.emit.plan_document import GoalRecord, PlanDocument
from generator.emit.plan_json import to_json
from generator.emit.render import render
from generator.emit.sources import LinkChange, PlacedSource, keep_sources, link_sources, place_sources
from generator.errors import UsageError, escape_control
from generator.inputs.hardware import read_hardware, state_values
from generator.inputs.held import make_scratch
from generator.progress import Say, choose_say, echo_json, is_quiet, tell_detail, time_stage
from generator.run.package_lock import LOCKED, lock_packages
from generator.run.plan_file import FILE, read_config, read_document, read_object
from generator.show.reading import list_reading_lines


def check_machine(hardware: str) -> None:
    """Raises ``NotEmitted`` for a machine that no project is made for, before anything else is asked."""
    refuse_machine(read_hardware(hardware))


def plan_request(request: Request) -> Planned:
    """Read the machine, the model and the data, and decide. Raises ``PerfgenError`` for whatever a user can cause."""
    check_text(request)
    check_used(request)
    check_lengths(request)
    with time_stage("read the machine"):
        hardware = state_values(read_hardware(request.hardware, request.measure), request.stated)
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
    check_used(request)
    request = use_whole_machine(request)
    work = read_work(request)
    tried = list_concurrencies(request, target, work.workload)
    offers = find_offers(work.spec, work.workload, target, say, tried)
    return use_machine(request, offers[0], work.workload), describe_goal(offers, target, work.workload, tried)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class InitOptions:
    """How `perfgen init` writes, as its flags have it."""

    smoke: bool = True
    dry_run: bool = False
    diff: bool = False
    full: bool = False
    overwrite: bool = False
    yes: bool = False
    lock: bool = False
    as_json: bool = False

    @property
    def looks(self) -> bool:
        """Nothing is written."""
        return self.dry_run or self.diff


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A project before it is rendered; ``plan`` is the document as plan.json has it.

    ``placed``: the model and data that lie on this machine, with their places in the project.
    """

    document: PlanDocument
    plan: dict[str, Any]
    placed: tuple[PlacedSource, ...]


def draft_project(request: Request, target: Path, name: str) -> Draft:
    """The plan document of the project ``name`` in the folder ``target``. Raises what ``plan_request`` does, and ``NotEmitted``."""
    planned = plan_request(request)
    check_emittable(planned)
    document = build_document(planned, name=name, dest=target)
    document = replace(document, request=record_request(request, target))
    return Draft(document=document, plan=to_json(document), placed=place_sources(planned.work, target))


def write_project(request: Request, dest: Path, options: InitOptions) -> None:
    """`perfgen init`: plan, render beside the destination, check, land, smoke-run."""
    target, say = choose_target(dest, options), choose_say(options.as_json)
    if dest.is_symlink():
        say(f"{dest} is a link: writing to {target}")
    with nullcontext() if options.looks else place.lock_destination(target):
        draft = draft_project(request, target, target.name)
        if not options.as_json and not options.diff:
            from generator.show.terminal import show_plan

            show_plan(draft.document)
        with make_scratch() if options.looks else place.make_staging(target) as stage:
            tree = read_tree(stage, render(draft.plan, stage))
            if options.diff:
                from generator.show.differences import show_drift

                return show_drift(draft.plan, tree, target, options.full, options.as_json)
            tree = add_record(tree)
            if options.dry_run:
                return show_files(draft.plan, sorted(tree), target, options.as_json)
            write_tree(stage, tree)
            plan, files = lock_tree(stage, tree, say) if options.lock else (draft.plan, sorted(tree))
            land_project(stage, draft.placed, target, options, say, len(files))
        packing = pack_project(draft.document, draft.placed, target, files)
        smoked = smoke_run(request, target, say) if options.smoke else None
    if options.as_json:
        echo_json(describe_files(plan, files, target) | {"smoke": smoked, "packing": to_json(packing)})
    elif is_quiet():
        return None
    elif draft.document.project.elsewhere:
        say("\n".join(format_packing(packing, draft.document)))
    else:
        verb = "train" if request.mode == "train" else "infer"
        say(f"next: cd {shlex.quote(str(target))} && make setup && make {verb}   (PLAN.md has the reasons)")
    return None


def choose_target(dest: Path, options: InitOptions) -> Path:
    """``dest`` resolved, once it can be written to as asked. Raises ``UsageError`` and ``DestinationError``."""
    if options.lock and options.looks:
        raise UsageError("--lock writes what it is told by an index and a registry: not with --dry-run or --diff")
    target = place.resolve_destination(dest, options.overwrite or options.looks)
    replaces = options.overwrite and not options.looks and place.is_occupied(target)
    if replaces and not options.yes and not (sys.stdin and sys.stdin.isatty()):
        raise UsageError(f"--overwrite replaces {target}, and nobody can be asked here", "--yes replaces it unasked")
    return target


def describe_files(plan: dict[str, Any], files: list[str], target: Path) -> dict[str, Any]:
    """What --json says of an init; of its smoke run, that there was none."""
    return {"schema": 1, "dest": str(target), "files": files, "plan": plan, "smoke": None}


def show_files(plan: dict[str, Any], files: list[str], target: Path, as_json: bool) -> None:
    """`init --dry-run`: what would be written."""
    say = choose_say(as_json)
    say(f"\nwould write {len(files)} files to {target}:")
    for path in files:
        say(f"  {path}")
    if as_json:
        echo_json(describe_files(plan, files, target) | {"written": False})


def lock_tree(stage: Path, tree: Tree, say: Say) -> tuple[dict[str, Any], list[str]]:
    """`init --lock`: the plan and the files of the tree in ``stage``, once its packages and image are pinned."""
    say("\nlocking: every package by its hash, the base image by its digest")
    return lock_packages(stage, say), sorted([*tree, LOCKED])


def land_project(
    stage: Path, placed: tuple[PlacedSource, ...], target: Path, options: InitOptions, say: Say, count: int
) -> None:
    """Move the finished tree of ``count`` files into place, after asking where something is replaced."""
    if options.overwrite and not options.yes and place.is_occupied(target):
        click.confirm(f"replace {target} (the old folder is kept beside it)?", abort=True, err=True)
    refused = link_sources(placed, stage)
    backup = place.land_tree(stage, target, options.overwrite)
    say(f"\nwrote {count} files to {target}")
    if backup:
        say(f"the old folder is {backup}")
        for name in keep_sources(placed, backup, target):
            say(f"{name} stays in the new one")
    tell_refused(refused, target, say)


def tell_refused(refused: tuple[LinkChange, ...], target: Path, say: Say) -> None:
    for change in refused:
        if change.after is not None:
            say(f"no link could be made there: copy {change.after} to {target / change.name}")


def smoke_run(request: Request, target: Path, say: Say) -> dict | None:
    """Run it where it can run here; otherwise say what was not done."""
    from generator.run import smoke

    if request.hardware is not None:
        parallel = smoke.load_plan(target)["parallel"]
        there = smoke.SMOKE_JOB if parallel and parallel["nodes"] > 1 else "perfgen smoke"
        say(f"smoke run: not done, the plan is for another machine (`{there}` runs it there)")
        return None
    return smoke.try_project(target, say)
