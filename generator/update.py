"""`perfgen update`: plan again for what a project was asked for, say what differs, merge, land, smoke-run.

What was emitted (emit/base.py), what stands there and what would be emitted today meet in emit/outcomes.py, file by file.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from generator.case.request import Request
from generator.emit.asked import find_config_edits, merge_requests, restore_request
from generator.emit.base import check_project, find_base, read_origin
from generator.emit.changes import Change, compare_plans
from generator.emit.emitted import FILE as RECORD
from generator.emit.emitted import FOLDER, Tree, add_record, read_tree
from generator.emit.landing import finish_landing, is_interrupted, land_files, list_removals, list_writes, lock_project
from generator.emit.locked import carry_lock
from generator.emit.outcomes import Kind, Outcome, check_markers, decide_outcomes, list_differences
from generator.emit.packing import PackingList, format_packing, pack_project
from generator.emit.plan_document import PlanDocument
from generator.emit.plan_json import to_json
from generator.emit.render import render
from generator.emit.sources import LinkChange, PlacedSource, compare_links
from generator.errors import ConflictError, DestinationError, UsageError
from generator.inputs.held import make_scratch
from generator.pipeline import draft_project, smoke_run, tell_refused
from generator.progress import Say, choose_say, echo_json, is_quiet, tell_detail, time_stage
from generator.run.plan_file import FILE, read_config, read_object
from generator.show import differences


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateOptions:
    """How `perfgen update` works, as its flags have it. ``forget``: options that are decided anew."""

    forget: tuple[str, ...] = ()
    rejects: bool = False
    smoke: bool = True
    dry_run: bool = False
    full: bool = False
    yes: bool = False
    as_json: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What would be done to the project ``target``."""

    target: Path
    request: Request
    plan: dict[str, Any]
    document: PlanDocument
    base: Tree
    new: Tree
    rejects: bool
    changes: tuple[Change, ...]
    outcomes: tuple[Outcome, ...]
    notes: tuple[str, ...]
    placed: tuple[PlacedSource, ...]
    links: tuple[LinkChange, ...]

    @property
    def conflicts(self) -> list[str]:
        return [outcome.name for outcome in self.outcomes if outcome.kind is Kind.CONFLICT]


def update_project(today: Request, folder: Path, options: UpdateOptions) -> None:
    """The project in ``folder`` as ``today`` would have it, the user's edits kept. Raises ``ConflictError`` where some are marked."""
    target, say = check_project(folder), choose_say(options.as_json)
    if not (options.yes or options.dry_run or (sys.stdin.isatty() and sys.stderr.isatty())):
        raise UsageError("update asks before it writes, and nobody can answer here", "give --yes, or --dry-run to look")
    with nullcontext() if options.dry_run else lock_project(target):
        finish_earlier(target, options.dry_run, say)
        update = plan_update(today, target, options)
        brief = is_quiet() and not options.dry_run  # of a dry run the list is the result
        differences.show_update(update.notes, update.changes, update.outcomes, say, brief)
        if options.full:
            say("".join(list_differences(target, update.outcomes)), nl=False)
        landed = None if options.dry_run else land_update(update, options.yes, say)
    result = {"schema": 1, "dest": str(target)} | differences.to_json(update.changes, update.outcomes, update.plan)
    result |= {"notes": list(update.notes), "written": landed is not None, "backup": landed or None}
    result |= {"smoke": None, "packing": None}
    if landed is not None and options.smoke:
        if update.conflicts:
            say("smoke run: not done, conflicts come first")
        else:
            result["smoke"] = smoke_run(update.request, target, say)
    if landed is not None and update.document.project.elsewhere:
        packing = pack_again(update)
        result["packing"] = to_json(packing)
        say("\n".join(format_packing(packing, update.document)))
    if update.conflicts and not options.dry_run:
        raise ConflictError(
            f"conflicts in {', '.join(update.conflicts)}", advise_settling(update.outcomes), report=result
        )
    if options.as_json:
        echo_json(result)


def finish_earlier(target: Path, dry_run: bool, say: Say) -> None:
    """An update that was broken off while it wrote goes first. Raises ``DestinationError`` where nothing may be written."""
    if not dry_run:
        for name in finish_landing(target):
            say(f"{name} was changed after the update that was broken off: it stays, the new version is beside it")
    elif is_interrupted(target):
        raise DestinationError(
            f"an update of {target} was broken off", "`perfgen update` without --dry-run finishes it"
        )


def plan_update(today: Request, target: Path, options: UpdateOptions) -> Update:
    """The project as it would be planned and rendered today, merged with what stands there. Nothing is written."""
    old = read_object(target / FILE)
    kept = restore_request(old, target, (*today.given, *options.forget))
    base = find_base(target, old)
    tell_detail(f"base of the merge: {base.note or f'{target / RECORD}, {len(base.tree)} files'}")
    check_markers(target, base.tree)
    request, dropped = merge_requests(kept, today, options.forget)
    draft = draft_project(request, target, read_name(old, target))
    with time_stage("rendered"), make_scratch() as stage:
        new = add_record(read_tree(stage, render(draft.plan, stage, read_origin(target).template)))
    locked = carry_lock(target, old, base.tree, new, options.rejects)
    links = compare_links(draft.placed, target)
    plan = draft.plan | ({"lock": locked.record} if locked.record else {})
    edits = find_config_edits(read_config(target), old, plan)
    of_another = f"dropped, being of what is now another: {', '.join(dropped)}" if dropped else ""
    with time_stage("merged"):
        outcomes = decide_outcomes(target, locked.base, locked.new, options.rejects)
    return Update(
        target=target,
        request=request,
        plan=plan,
        document=draft.document,
        base=locked.base,
        new=locked.new,
        rejects=options.rejects,
        changes=compare_plans(old, plan),
        outcomes=outcomes,
        placed=draft.placed,
        links=links,
        notes=tuple(filter(None, (base.note, of_another, *edits, *locked.notes, *map(str, links)))),
    )


def land_update(update: Update, yes: bool, say: Say) -> str | None:
    """Write it, after asking; where the old files are ("" for no old ones), ``None`` if there was nothing to do."""
    writes, removals = list_writes(update.outcomes), list_removals(update.outcomes)
    count = len({name for name in (*writes, *removals) if not name.startswith(f"{FOLDER}/")})
    links = sum(not link.obstacle for link in update.links)
    changes = f"{count} files" + (f" and {links} link{'s' if links > 1 else ''}" if links else "")
    if not writes and not removals and not links:
        say("nothing to do: the project is what would be written today")
        return None
    if not yes:
        click.confirm(f"change {changes} of {update.target}?", abort=True, err=True)
    if (
        compare_links(update.placed, update.target) != update.links
        or decide_outcomes(update.target, update.base, update.new, update.rejects) != update.outcomes
    ):
        raise DestinationError(f"{update.target} was changed meanwhile", "nothing was written: run it again")
    backup = land_files(update.target, writes, removals, {link.name: link.after for link in update.links})
    tell_refused(compare_links(update.placed, update.target), update.target, say)
    say(f"\nchanged {changes} of {update.target}" + (f"; as they were: {backup}" if backup else ""))
    return str(backup or "")


def advise_settling(outcomes: tuple[Outcome, ...]) -> str:
    """Each conflict was named with what stands where: between markers, or in a file beside it."""
    conflicts = [outcome for outcome in outcomes if outcome.kind is Kind.CONFLICT]
    beside = [outcome.beside[0] for outcome in conflicts if outcome.beside]
    ways = ["settle them there and remove the markers"] if len(beside) < len(conflicts) else []
    ways += [f"take over what you want of {', '.join(beside)}"] if beside else []
    return f"{', '.join(ways)}, then `make smoke`"


def pack_again(update: Update) -> PackingList:
    """What the project is now: the files of perfgen's that still stand there."""
    files = [name for name in sorted(update.new) if (update.target / name).is_file()]
    return pack_project(update.document, update.placed, update.target, files)


def read_name(plan: Mapping, target: Path) -> str:
    """The project's name, which moving its folder does not change."""
    project = plan.get("project")
    name = project.get("name") if isinstance(project, Mapping) else None
    return name if isinstance(name, str) else target.name
