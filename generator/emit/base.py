"""The base of an update's merge: exactly what was emitted into a project, however it was made."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generator.emit.emitted import FILE, Emitted, Tree, read_emitted, read_record, read_tree
from generator.emit.place import MARK
from generator.emit.project import read_version
from generator.emit.render import OURS, RenderError, render
from generator.errors import DestinationError, SourceError

ANSWER = re.compile(r"^(_src_path|_commit): *(['\"]?)(.*?)\2 *$", re.MULTILINE)
SECONDS = 60
"""That git may take to give a version of a local template."""


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
        if (target / name).is_file():
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

    answers = yaml.safe_load((folder / MARK).read_text(encoding="utf-8"))
    kept = answers.get("plan")
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
    with tempfile.TemporaryDirectory(prefix="perfgen-") as scratch:
        stage = Path(scratch) / "project"
        stage.mkdir()
        try:
            return read_tree(stage, render(dict(document), stage, template, root))
        except RenderError as error:
            hint = "use `copier update`" if template else f"bring {FILE} back: git checkout -- {FILE}"
            raise SourceError(f"the project cannot be rendered again: {error}", hint) from error


@contextmanager
def export_template(origin: Origin, folder: Path) -> Generator[Path | None]:
    """The template as it was at the commit of the answers, if it is a repository on this machine. No network is asked."""
    address = re.sub(r"^(git\+)?file://", "", (origin.template or "").removeprefix("git+"))
    path = folder / Path(address).expanduser()
    commit = origin.commit or ""
    if not shutil.which("git") or not path.is_dir() or commit.startswith("-"):
        yield None
        return
    asked = ("git", "-C", str(path), "archive", "--format=tar", commit, "templates", "copier.yml", "portable.yml")
    try:
        done = subprocess.run(asked, capture_output=True, stdin=subprocess.DEVNULL, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        done = None
    if done is None or done.returncode:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="perfgen-template-") as scratch:
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            archive.extractall(scratch, filter="data")
        yield Path(scratch)
