"""The base of an update's merge: exactly what was emitted into a project, however it was made."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generator.emit.emitted import FILE, Emitted, Tree, check_name, read_emitted, read_record, read_tree, write_tree
from generator.emit.git_files import read_files
from generator.emit.place import MARK
from generator.emit.project import read_version
from generator.emit.render import OURS, RenderError, render
from generator.errors import DestinationError, SourceError, quote_error
from generator.inputs.held import make_scratch
from generator.inputs.json_files import is_small_file

ANSWER = re.compile(r"^(_src_path|_commit): *(['\"]?)(.*?)\2 *$", re.MULTILINE)
TEMPLATE = ("templates", "copier.yml", "portable.yml")
"""All that a version of the template needs."""


@dataclass(frozen=True, slots=True)
class Base:
    """``note`` says where the files come from, if they are not the record."""

    tree: Tree
    note: str = ""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the answers say that the template is; ``template`` None: perfgen wrote the project."""

    template: str | None
    commit: str | None


def check_project(folder: Path) -> Path:
    """``folder`` resolved. Raises ``DestinationError`` where no generated project is."""
    target = folder.resolve()
    for name in (MARK, "plan.json"):
        if is_small_file(target / name):
            continue
        if (target / FILE).is_file():
            raise DestinationError(
                f"{folder} holds no {name} any more", f"bring it back, in there: unzip -p {FILE} {name} > {name}"
            )
        raise DestinationError(f"{folder} holds no {name}: it is no generated project", "make one: perfgen init DEST")
    return target


def read_origin(folder: Path) -> Origin:
    answers = {m[1]: m[3] for m in ANSWER.finditer((folder / MARK).read_text(encoding="utf-8", errors="replace"))}
    template = answers.get("_src_path")
    return Origin(None if template == OURS else template, answers.get("_commit"))


def find_base(folder: Path, plan: Mapping[str, Any]) -> Base:
    """What was emitted into the project ``folder``, whose plan.json is ``plan``. Raises ``SourceError``."""
    record = read_record(folder)
    answers = read_emitted(folder / MARK)
    if record is not None and unify(record.get(MARK, answers).content) == unify(answers.content):
        return Base(record)
    origin = read_origin(folder)
    if origin.template is None and record is not None:
        raise SourceError(
            f"{MARK} is not the one that perfgen wrote, as {FILE} has it: what was emitted is not known",
            f"bring it back: git checkout -- {MARK}, or unzip -p {FILE} {MARK} > {MARK}",
        )
    if origin.template is None:
        if plan.get("perfgen") != read_version():
            raise SourceError(
                f"there is no {FILE}, and perfgen {plan.get('perfgen')} wrote the project (this is {read_version()}): "
                "what was emitted is not known",
                f"bring it back (git checkout -- {FILE}), or run `perfgen update` of version {plan.get('perfgen')} first",
            )
        return Base(render_again(plan, None, None), f"{FILE} is not there: plan.json, rendered again, stands for it")
    return render_copied(folder, plan, origin)


def unify(content: bytes) -> bytes:
    return content.replace(b"\r\n", b"\n")


def render_copied(folder: Path, plan: Mapping[str, Any], origin: Origin) -> Base:
    """What `copier copy` or `copier update` emitted last: from the answers, with their template where it can be had here."""
    import yaml

    try:
        answers = yaml.safe_load((folder / MARK).read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SourceError(
            f"{folder / MARK} is not YAML: {quote_error(error)}", f"bring it back: git checkout -- {MARK}"
        ) from error
    kept = answers.get("plan") if isinstance(answers, dict) else None
    if not isinstance(kept, dict):
        raise SourceError(f"{MARK} holds no plan", "`copier update` is for this project")
    document = {**kept, "perfgen": plan.get("perfgen", "0")}
    with export_template(origin, folder) as root:
        if root is None and origin.commit != f"v{read_version()}":
            raise SourceError(
                f"{origin.template} at {origin.commit} emitted this project, which is not here; perfgen has v{read_version()}",
                "use `copier update`; or install the perfgen of that version for one update",
            )
        tree = render_again(document, origin.template, root)
    own = read_emitted(folder / "plan.json")
    note = f"emitted by Copier from {origin.template} at {origin.commit}, rendered again"
    return Base({**tree, "plan.json": own, MARK: read_emitted(folder / MARK)}, note)


def render_again(document: Mapping[str, Any], template: str | None, root: Path | None) -> dict[str, Emitted]:
    with make_scratch() as stage:
        try:
            return read_tree(stage, render(dict(document), stage, template, root))
        except RenderError as error:
            hint = "use `copier update`" if template else f"bring {FILE} back: git checkout -- {FILE}"
            raise SourceError(f"the project cannot be rendered again: {quote_error(error)}", hint) from error


@contextmanager
def export_template(origin: Origin, folder: Path) -> Generator[Path | None]:
    """The template as it was at the commit of the answers, if it is a repository on this machine. No network is asked."""
    address = re.sub(r"^(git\+)?file://", "", (origin.template or "").removeprefix("git+"))
    path = folder / Path(address).expanduser()
    files = read_files(path.resolve(), origin.commit or "", TEMPLATE) if path.is_dir() else None
    if files is None:
        yield None
        return
    with make_scratch() as scratch:
        try:
            for name in files:
                check_name(name)
        except ValueError as error:
            raise SourceError(f"{path} at {origin.commit}: {quote_error(error)}", "use `copier update`") from error
        write_tree(scratch, files)
        for name, file in files.items():
            (scratch / name).chmod(0o755 if file.executable else 0o644)
        yield scratch
