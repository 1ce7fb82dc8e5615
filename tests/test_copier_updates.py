"""Updates by plain Copier, in an environment of its own without perfgen: thirty of them, and what stands beside the markers.

Copier merges a file that a hand edit collides in from a render of its own, in which hidden answers are left out.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from generator import bundle

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.slow

NEWEST = "9.19.1"
"""Of the Copiers that the template supports; also the oldest (``_min_copier_version``)."""
MARKED = re.compile(r"<<<<<<< before updating\n(.*?)=======\n(.*?)>>>>>>> after updating\n", re.DOTALL)
EDIT = "# mine\n"


def run(*command: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="session", autouse=True)
def plain_environment(tmp_path_factory):
    """Copier commits in folders of its own; no setting of this user matters, and no module of this checkout."""
    settings = tmp_path_factory.mktemp("git") / "config"
    settings.write_text("[user]\nname = t\nemail = t@example.org\n[init]\ndefaultBranch = main\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIT_CONFIG_GLOBAL", str(settings))
        patch.delenv("PYTHONPATH", raising=False)
        yield


def install_copier(version: str, folder: Path) -> tuple[str, ...]:
    run(sys.executable, "-m", "venv", str(folder))
    python = str(folder / "bin" / "python")
    done = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", f"copier=={version}"], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"no package index gives copier {version}: {done.stderr.strip().splitlines()[-1:]}")
    assert subprocess.run([python, "-c", "import generator"], capture_output=True, cwd="/").returncode
    return (python, "-m", "copier")


@pytest.fixture(scope="session")
def newest(tmp_path_factory) -> tuple[str, ...]:
    return install_copier(NEWEST, tmp_path_factory.mktemp("newest") / "venv")


def commit(repo: Path, tag: str | None = None) -> None:
    run("git", "add", "-A", cwd=repo)
    run("git", "commit", "-qm", tag or "mine", cwd=repo)
    if tag:
        run("git", "tag", tag, cwd=repo)


@pytest.fixture(scope="session")
def template(tmp_path_factory) -> Path:
    """Two versions: the newer has another line in the Makefile and a new file, and lacks report.html."""
    repo = tmp_path_factory.mktemp("template")
    bundle.copy_template(repo)
    run("git", "init", "-q", cwd=repo)
    commit(repo, "v0.1.0")
    project = repo / "templates" / "project"
    makefile = project / "Makefile.jinja"
    makefile.write_text(makefile.read_text().replace("PYTHON ?= python3\n", "PYTHON ?= python3.11\n"))
    (project / "NEWS.md").write_text("of the newer template\n")
    (project / "report.html.jinja").unlink()
    commit(repo, "v0.2.0")
    return repo


@pytest.fixture(scope="session")
def plans(tmp_path_factory) -> dict[str, Path]:
    """Two of the golden record under one name: of another machine and length; adapters have files of their own (merge.py)."""
    folder = tmp_path_factory.mktemp("plans")
    paths = {}
    for name, example in {"full": "h100-8b-full", "lora": "rtx-4090-8b-lora"}.items():
        plan = json.loads((ROOT / "examples" / example / "project" / "plan.json").read_text(encoding="utf-8"))
        plan["project"]["name"] = "mine"
        paths[name] = folder / f"{name}.yml"
        paths[name].write_text(yaml.safe_dump({"plan": plan}), encoding="utf-8")
    return paths


@dataclass(frozen=True)
class Update:
    """From one plan and version to another, and what differs between them."""

    plans: tuple[str, str]
    versions: tuple[str, str]
    file: str
    line: str
    added: str
    dropped: str


UPDATES = {
    "plan": Update(("full", "lora"), ("v0.1.0", "v0.1.0"), "config.yaml", "seq_len: 4096\n", "merge.py", ""),
    "plan-back": Update(("lora", "full"), ("v0.1.0", "v0.1.0"), "config.yaml", "seq_len: 2048\n", "", "merge.py"),
    "template": Update(
        ("full", "full"), ("v0.1.0", "v0.2.0"), "Makefile", "PYTHON ?= python3\n", "NEWS.md", "report.html"
    ),
    "both": Update(("full", "lora"), ("v0.1.0", "v0.2.0"), "config.yaml", "seq_len: 4096\n", "merge.py", "report.html"),
}
EDITS = ("beside", "on", "added", "dropped", "deleted")
CONFLICTS = ("inline", "rej")


class Projects:
    """Fresh projects, each copied once."""

    def __init__(self, template: Path, plans: dict[str, Path], copier: tuple[str, ...], folder: Path):
        self.template, self.plans, self.copier, self.folder = template, plans, copier, folder

    def copy_fresh(self, plan: str, version: str) -> Path:
        target = self.folder / f"{plan}-{version}"
        if not target.exists():
            run(
                *(*self.copier, "copy", "--defaults", "--quiet", "--vcs-ref", version),
                *("--data-file", str(self.plans[plan]), str(self.template), str(target)),
            )
        return target

    def start(self, update: Update, folder: Path) -> Path:
        shutil.copytree(self.copy_fresh(update.plans[0], update.versions[0]), folder)
        run("git", "init", "-q", cwd=folder)
        return folder

    def update(self, update: Update, folder: Path, conflict: str) -> None:
        commit(folder)
        command = (
            *self.copier,
            "update",
            "--defaults",
            "--quiet",
            "--conflict",
            conflict,
            "--vcs-ref",
            update.versions[1],
        )
        if update.plans[0] != update.plans[1]:
            command += ("--data-file", str(self.plans[update.plans[1]]))
        run(*command, cwd=folder)


@pytest.fixture(scope="session")
def projects(template, plans, newest, tmp_path_factory) -> Projects:
    return Projects(template, plans, newest, tmp_path_factory.mktemp("projects"))


def read_tree(folder: Path) -> dict[str, str]:
    files = [p for p in folder.rglob("*") if p.is_file() and ".git" not in p.parts]
    return {str(p.relative_to(folder)): p.read_text(encoding="utf-8") for p in files}


def check_rest(mine: dict[str, str], fresh: dict[str, str], touched: set[str]) -> None:
    """Every file that nobody edited is that of a fresh project; the answers say where the template is."""
    for name in (mine.keys() | fresh.keys()) - touched:
        assert mine.get(name) == fresh.get(name), name


CASES = [
    (name, edit, conflict)
    for name, edit, conflict in itertools.product(UPDATES, EDITS, CONFLICTS)
    if edit not in ("added", "dropped") or getattr(UPDATES[name], edit)
]


@pytest.mark.parametrize(("name", "edit", "conflict"), CASES)
def test_an_update_keeps_edits_and_marks_conflicts(name, edit, conflict, projects, tmp_path):
    update = UPDATES[name]
    fresh = read_tree(projects.copy_fresh(update.plans[1], update.versions[1]))
    folder = projects.start(update, tmp_path / "mine")
    edited = {"beside": "README.md" if name.startswith("plan") else update.file, "on": update.file}.get(edit, "")
    edited = {"added": update.added, "dropped": update.dropped, "deleted": "infer.py"}.get(edit, edited)
    path = folder / edited
    if edit == "beside":
        path.write_text(path.read_text() + EDIT)
    elif edit == "on":
        assert update.line in path.read_text()
        path.write_text(path.read_text().replace(update.line, f"{update.line.strip()}0  {EDIT}"))
    elif edit == "added":
        path.write_text(EDIT)
    elif edit == "dropped":
        path.write_text(path.read_text() + EDIT)
    else:
        path.unlink()
    projects.update(update, folder, conflict)

    mine = read_tree(folder)
    rejected = mine.pop(f"{edited}.rej", "")
    check_rest(mine, fresh, {edited})
    if edit == "deleted":
        assert edited not in mine
        return
    if edit == "dropped":
        # Copier removes it, edited or not: it wants everything committed before, so that git still has it
        assert edited not in mine
        assert EDIT in run("git", "show", f"HEAD:{edited}", cwd=folder).stdout
        return
    if edit == "beside":
        assert mine[edited] == fresh[edited] + EDIT
        return
    if conflict == "inline":
        assert EDIT in MARKED.search(mine[edited])[1]
        assert MARKED.sub(r"\2", mine[edited]) == fresh[edited]
    else:
        assert EDIT.strip() in rejected or EDIT in mine[edited]
        assert mine[edited].replace(EDIT, "") == fresh[edited]


def test_a_copier_before_the_oldest_that_works_is_refused(tmp_path):
    """9.19.0 cannot check out a tag where Git is older than 2.43.1, and versions before it would drop the plan."""
    copier = install_copier("9.19.0", tmp_path / "venv")
    (tmp_path / "bundle").mkdir()
    bundle.copy_template(tmp_path / "bundle")
    command = (*copier, "copy", "--defaults", str(tmp_path / "bundle"), str(tmp_path / "mine"))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode
    assert "requires Copier version >= 9.19.1" in " ".join(done.stderr.split())
    assert not (tmp_path / "mine").exists()
