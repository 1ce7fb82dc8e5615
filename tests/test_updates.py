"""Thirty-six updates by the command: from a checkout, a wheel and a tag; plan, template or both changed; five kinds of edits.

Every edit is there afterwards, conflicts are marked, and all that stands beside edit and markers is what a fresh project has.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from git_command import GIT

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.slow

PARTS = ("generator", "hwdetect", "templates", "copier.yml", "portable.yml", "pyproject.toml", "README.md", "LICENSE")
PLANS = {
    "cpu": ("--hardware", "cpu:4", "--seq-len", "128"),
    "gpu": ("--hardware", "1xt4", "--seq-len", "256"),
}
"""The second has a file more (compiler.py)."""
ALWAYS = ("--global-batch", "4")
MARKED = re.compile(r"<<<<<<< before updating\n(.*?)=======\n(.*?)>>>>>>> after updating\n", re.DOTALL)


@dataclass(frozen=True)
class Update:
    """From one plan and template to another, and what differs between them: a line of a file, and files."""

    plans: tuple[str, str]
    versions: tuple[str, str]
    file: str
    line: str
    beside: str
    added: str = ""
    dropped: str = ""


CONFIG = ("config.yaml", "seq_len: 128\n", "training:\n")
MAKEFILE = ("Makefile", "PYTHON ?= python3\n", "make clean")
UPDATES = {
    "plan": Update(("cpu", "gpu"), ("old", "old"), *CONFIG, added="compiler.py"),
    "plan-back": Update(
        ("gpu", "cpu"), ("old", "old"), "config.yaml", "seq_len: 256\n", "training:\n", dropped="compiler.py"
    ),
    "template": Update(("cpu", "cpu"), ("old", "new"), *MAKEFILE, added="NEWS.md", dropped="report.html"),
    "both": Update(("cpu", "gpu"), ("old", "new"), *CONFIG, added="compiler.py", dropped="report.html"),
}
SOURCES = ("checkout", "wheel", "tag")
CASES = [
    (update, edit, conflict)
    for update, edit, conflict in itertools.product(
        UPDATES, ("beside", "on", "added", "dropped", "deleted"), ("inline", "rej")
    )
    if edit not in ("added", "dropped") or getattr(UPDATES[update], edit)
]


def run(*command: str | Path, cwd: Path | None = None, code: int = 0, **environment: str) -> str:
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, check=False, timeout=600,
        env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
    )  # fmt: skip
    assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def change_template(root: Path) -> None:
    """Another line in the Makefile, a file more, a file less."""
    project = root / "templates" / "project"
    makefile = project / "Makefile.jinja"
    assert "PYTHON ?= python3\n" in makefile.read_text()
    makefile.write_text(makefile.read_text().replace("PYTHON ?= python3\n", "PYTHON ?= python3.11\n"))
    (project / "NEWS.md").write_text("of the newer template\n")
    (project / "report.html.jinja").unlink()


def copy_checkout(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in PARTS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(ROOT / name, folder / name)
    return folder


def install_wheel(checkout: Path, folder: Path) -> Path:
    """The interpreter of an environment that holds perfgen from its wheel; dependencies come from the running one."""
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, checkout)
    run(*build)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel)
    (site,) = (folder / "env").glob("lib/python*/site-packages")
    # Of sys.path, not of sysconfig: an environment may take packages from others, by .pth files that another's are not read behind.
    paths = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (site / "dependencies.pth").write_text("\n".join(paths) + "\n")
    return python


@pytest.fixture(scope="session")
def programs(tmp_path_factory) -> dict[tuple[str, str], Callable[..., str]]:
    """perfgen with the old and the new template, as a checkout, a wheel, and a clone at a tag."""
    folder, started = tmp_path_factory.mktemp("programs"), {}
    for version in ("old", "new"):
        checkout = copy_checkout(folder / "checkout" / version)
        if version == "new":
            change_template(checkout)
        (folder / "wheel" / version).mkdir(parents=True)
        started["checkout", version] = (sys.executable, checkout)
        started["wheel", version] = (install_wheel(checkout, folder / "wheel" / version), folder)
    repository = copy_checkout(folder / "repository")
    git = (*GIT, "-C", repository)
    run(*git, "init", "-q")
    for version, tag in (("old", "v0.1.0"), ("new", "v0.2.0")):
        if version == "new":
            change_template(repository)
        run(*git, "add", "-A")
        run(*git, "commit", "-qm", tag)
        run(*git, "tag", tag)
        run("git", "clone", "-q", "--branch", tag, repository, folder / "tag" / version)
        started["tag", version] = (sys.executable, folder / "tag" / version)

    def start(python: Path, root: Path) -> Callable[..., str]:
        path = str(root) if (root / "generator").is_dir() else ""
        return lambda *words, code=0: run(python, "-m", "generator.cli", *words, cwd=folder, code=code, PYTHONPATH=path)

    return {key: start(*value) for key, value in started.items()}


@pytest.fixture(scope="session")
def fresh(programs, tmp_path_factory) -> Callable[[str, str, str], Path]:
    """Projects as init makes them, each once, all of one name."""
    folder = tmp_path_factory.mktemp("fresh")

    def make(source: str, version: str, plan: str) -> Path:
        target = folder / f"{source}-{version}-{plan}" / "mine"
        if not target.exists():
            programs[source, version]("init", target, "--sample", *PLANS[plan], *ALWAYS, "--no-smoke")
        return target

    return make


def read(folder: Path) -> dict[str, bytes]:
    names = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {
        name: path.read_bytes()
        for name, path in names.items()
        if name == ".perfgen/emitted.zip" or not name.startswith(".perfgen/")
    }


def test_there_are_thirty():
    assert len(CASES) >= 30


@pytest.mark.parametrize(("number", "case"), list(enumerate(CASES)), ids=["-".join(case) for case in CASES])
def test_an_update(programs, fresh, tmp_path, number, case):
    name, edit, conflict = case
    update, source = UPDATES[name], SOURCES[number % len(SOURCES)]
    mine = Path(shutil.copytree(fresh(source, update.versions[0], update.plans[0]), tmp_path / "mine"))
    target = read(fresh(source, update.versions[1], update.plans[1]))
    runs = mine / "runs" / "model.bin"
    runs.parent.mkdir()
    runs.write_bytes(b"\0weights")
    changed, own = EDITS[edit](mine, update)

    words = ("update", mine, *PLANS[update.plans[1]], "--conflict", conflict, "--yes", "--no-smoke")
    stopped = edit in ("on", "added")
    output = programs[source, update.versions[1]](*words, code=5 if stopped else 0)
    after = read(mine)
    assert after.pop("runs/model.bin") == b"\0weights"
    if stopped or edit == "deleted":
        assert changed in output
    CHECKS[edit](after, target, changed, own, conflict)
    assert after.keys() == target.keys()
    assert [other for other in target if other != changed and after[other] != target[other]] == []


def edit_beside(mine: Path, update: Update) -> tuple[str, str]:
    path = mine / update.file
    if update.file == "Makefile":
        path.write_text(path.read_text() + "# mine\n")
    else:
        path.write_text(path.read_text().replace(update.beside, f"{update.beside}  # mine\n", 1))
    return update.file, "# mine"


def check_beside(after: dict, target: dict, changed: str, own: str, _: str) -> None:
    text = after[changed].decode()
    (line,) = [line for line in text.splitlines(True) if own in line]
    assert text.replace(line, "") == target[changed].decode()


def edit_on(mine: Path, update: Update) -> tuple[str, str]:
    path, own = mine / update.file, update.line.replace("\n", "7 # mine\n")
    assert update.line in path.read_text()
    path.write_text(path.read_text().replace(update.line, own))
    return update.file, own


def check_on(after: dict, target: dict, changed: str, own: str, conflict: str) -> None:
    text, new = after[changed].decode(), target[changed].decode()
    if conflict == "inline":
        ((left, right),) = MARKED.findall(text)
        assert own in left and right in new
        assert MARKED.sub(lambda match: match[2], text) == new
    else:
        rejected = after.pop(f"{changed}.rej").decode()
        (line,) = [
            line[1:] for line in rejected.splitlines(True) if line.startswith("+") and line[1:] in new.splitlines(True)
        ]
        assert f"-{own}" in rejected and text.replace(own, line) == new


def edit_added(mine: Path, update: Update) -> tuple[str, str]:
    (mine / update.added).write_text("# my own\n")
    return update.added, "# my own\n"


def check_added(after: dict, target: dict, changed: str, own: str, _: str) -> None:
    assert after[changed] == own.encode()
    assert after.pop(f"{changed}.perfgen-new") == target[changed]


def edit_dropped(mine: Path, update: Update) -> tuple[str, str]:
    with (mine / update.dropped).open("a") as file:
        file.write("# mine\n")
    return update.dropped, (mine / update.dropped).read_text()


def check_dropped(after: dict, target: dict, changed: str, own: str, _: str) -> None:
    assert changed not in target and after.pop(changed) == own.encode()


def edit_deleted(mine: Path, update: Update) -> tuple[str, str]:
    (mine / update.file).unlink()
    return update.file, ""


def check_deleted(after: dict, target: dict, changed: str, *_: str) -> None:
    assert changed not in after
    after[changed] = target[changed]


EDITS = {"beside": edit_beside, "on": edit_on, "added": edit_added, "dropped": edit_dropped, "deleted": edit_deleted}
CHECKS = {
    "beside": check_beside,
    "on": check_on,
    "added": check_added,
    "dropped": check_dropped,
    "deleted": check_deleted,
}
