"""The template used without perfgen: bare copies, plans from a file, updates that keep hand edits."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from generator.case.request import Request
from generator.emit import render
from generator.emit.document import build_document, dump_answers
from generator.pipeline import plan_request

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.slow


def run(*command: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


COPIER = (sys.executable, "-m", "copier")
GIT = (
    "git",
    "-c",
    "user.name=t",
    "-c",
    "user.email=t@example.org",
    "-c",
    "commit.gpgsign=false",
    "-c",
    "init.defaultBranch=main",
)


@pytest.fixture
def template(tmp_path) -> Path:
    """A tagged repository with this template, and nothing of perfgen."""
    repo = tmp_path / "template"
    repo.mkdir()
    shutil.copytree(ROOT / "templates", repo / "templates")
    shutil.copyfile(ROOT / "copier.yml", repo / "copier.yml")
    run(*GIT, "init", "-q", cwd=repo)
    commit(repo, "v0.1.0")
    return repo


def commit(repo: Path, tag: str) -> None:
    run(*GIT, "add", "-A", cwd=repo)
    run(*GIT, "commit", "-qm", tag, cwd=repo)
    run(*GIT, "tag", tag, cwd=repo)


def answers(path: Path, **request) -> Path:
    document = build_document(plan_request(Request(hardware="cpu:4", **request)), name="mine")
    path.write_text(dump_answers(document), encoding="utf-8")
    return path


def test_a_bare_copy_needs_no_trust_and_is_the_portable_example(template, tmp_path):
    run(*COPIER, "copy", "--defaults", "--quiet", str(template), str(tmp_path / "mine"))
    for path in sorted((ROOT / "examples/portable/project").rglob("*")):
        name = path.relative_to(ROOT / "examples/portable/project")
        if path.is_file() and name.suffix in (".py", ".yaml"):
            assert (tmp_path / "mine" / name).read_bytes() == path.read_bytes(), name


def test_a_plan_from_a_file_gives_what_init_gives(template, tmp_path):
    data = answers(tmp_path / "plan.yml", seq_len=128, global_batch=4)
    run(*COPIER, "copy", "--defaults", "--quiet", "--data-file", str(data), str(template), str(tmp_path / "copied"))
    (tmp_path / "rendered").mkdir()
    files = render.render(yaml.safe_load(data.read_text())["plan"], tmp_path / "rendered")
    assert len(files) > 12
    for path in files:
        if path.name != ".copier-answers.yml":
            assert (tmp_path / "copied" / path).read_bytes() == (tmp_path / "rendered" / path).read_bytes(), path


def test_an_update_with_a_newer_template_and_a_new_plan_keeps_hand_edits(template, tmp_path):
    mine = tmp_path / "mine"
    first = answers(tmp_path / "first.yml", seq_len=128, global_batch=4)
    run(*COPIER, "copy", "--defaults", "--quiet", "--data-file", str(first), str(template), str(mine))
    run(*GIT, "init", "-q", cwd=mine)
    train = mine / "train.py"
    train.write_text(train.read_text().replace("def main() -> None:\n", "def main() -> None:\n    print('mine')\n", 1))
    run(*GIT, "add", "-A", cwd=mine)
    run(*GIT, "commit", "-qm", "mine", cwd=mine)

    newer = template / "templates/project/Makefile.jinja"
    newer.write_text(newer.read_text() + "\n# newer template\n")
    commit(template, "v0.2.0")
    second = answers(tmp_path / "second.yml", seq_len=256, global_batch=8)
    run(*COPIER, "update", "--defaults", "--quiet", "--data-file", str(second), cwd=mine)

    assert "print('mine')" in train.read_text()
    assert "# newer template" in (mine / "Makefile").read_text()
    assert yaml.safe_load((mine / "config.yaml").read_text())["seq_len"] == 256
    assert json.loads((mine / "plan.json").read_text())["batch"]["global_batch"] == 8
    assert "<<<<<<<" not in train.read_text() + (mine / "config.yaml").read_text()


def test_a_new_plan_on_the_same_template(template, tmp_path):
    mine = tmp_path / "mine"
    run(
        *COPIER,
        "copy",
        "--defaults",
        "--quiet",
        "--data-file",
        str(answers(tmp_path / "a.yml", seq_len=128)),
        str(template),
        str(mine),
    )
    run(*GIT, "init", "-q", cwd=mine)
    run(*GIT, "add", "-A", cwd=mine)
    run(*GIT, "commit", "-qm", "mine", cwd=mine)
    second = answers(tmp_path / "b.yml", seq_len=512)
    run(*COPIER, "update", "--vcs-ref=:current:", "--defaults", "--quiet", "--data-file", str(second), cwd=mine)
    assert yaml.safe_load((mine / "config.yaml").read_text())["seq_len"] == 512
