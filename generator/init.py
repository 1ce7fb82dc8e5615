"""`perfgen init`: plan, render beside the destination, check, land, smoke-run."""

from __future__ import annotations

import difflib
import json
from pathlib import Path

import click

from generator import pipeline, place, project, render
from generator.errors import DriftError, SourceError, UsageError


def run(
    request, dest: Path, *, smoke: bool, dry_run: bool, diff: bool, overwrite: bool, yes: bool, as_json: bool
) -> None:
    target = place.destination(dest, overwrite or dry_run or diff)
    say = click.echo if not as_json else (lambda text="", **_: click.echo(text, err=True))
    if dest.is_symlink():
        say(f"{dest} is a link: writing to {target}")
    planned = pipeline.build(request)
    check(planned)
    document = project.document(planned, name=target.name)
    if not as_json:
        from generator import view

        view.show_plan(document)
    with place.scratch() if diff or dry_run else place.staging(target) as stage:
        files = render.render(document, stage)
        if diff:
            show_diff(stage, target, files, say)
            return
        if dry_run:
            say(f"\nwould write {len(files)} files to {target}:")
            for path in files:
                say(f"  {path}")
            return
        if overwrite and not yes and target.exists() and any(target.iterdir()):
            click.confirm(f"replace {target} (the old folder is kept beside it)?", abort=True, err=True)
        backup = place.land(stage, target)
    say(f"\nwrote {len(files)} files to {target}")
    if backup:
        say(f"the old folder is {backup}")
    result = {"schema": 1, "dest": str(target), "files": [str(p) for p in files], "plan": document, "smoke": None}
    if smoke:
        result["smoke"] = smoke_or_say_why(request, target, say)
    if as_json:
        click.echo(json.dumps(result, indent=2, ensure_ascii=False))
    else:
        verb = "train" if request.mode == "train" else "infer"
        say(f"next: cd {target} && make setup && make {verb}   (PLAN.md has the reasons)")


def check(planned: pipeline.Planned) -> None:
    """What a plan may leave open and a project may not. Raises ``UsageError``, ``SourceError``, ``NotEmitted``."""
    pipeline.refuse_unemitted(planned.plan)
    training = planned.request.mode == "train"
    if training and planned.data is None:
        raise UsageError("a training project needs data", "--data FILE, folder or hub id")
    if not training and not planned.source.has_weights:
        raise SourceError(
            f"{planned.source.name} holds sizes only: there is nothing to serve",
            "give a folder with weights, or a hub id",
        )


def smoke_or_say_why(request, target: Path, say) -> dict | None:
    """Run it where it can run here; otherwise say what was not done."""
    from generator import smoke

    if request.hardware is not None:
        say("smoke run: not done, the plan is for another machine (`perfgen smoke` runs it there)")
        return None
    interpreter = smoke.find_interpreter(target, None)
    missing = smoke.missing_modules(interpreter, target)
    if missing:
        say(
            f"smoke run: not done, {interpreter} lacks {', '.join(missing)}: `make setup`, then `perfgen smoke {target}`"
        )
        return None
    return smoke.run_quietly(target, say=say)


def show_diff(stage: Path, target: Path, files: list[Path], say) -> None:
    """Unified diff of what DEST holds against what would be written. Raises ``DriftError`` (exit 7) if they differ."""
    changed = 0
    for path in files:
        old = (target / path).read_text(encoding="utf-8").splitlines(True) if (target / path).is_file() else []
        new = (stage / path).read_text(encoding="utf-8").splitlines(True)
        lines = list(difflib.unified_diff(old, new, str(target / path), f"{path} (would be written)"))
        changed += bool(lines)
        say("".join(lines), nl=False)
    if changed:
        raise DriftError(f"{changed} of {len(files)} files differ from what would be written")
    say("no difference")
