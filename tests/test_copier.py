"""The template used without perfgen: bare copies, plans from a file, updates that keep hand edits."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from git_command import GIT

from generator import bundle
from generator.case.request import Request
from generator.emit import render
from generator.emit.document import build_document, dump_answers
from generator.pipeline import plan_request

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.slow


def run(*command: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


COPIER = (sys.executable, "-m", "copier")


@pytest.fixture
def template(tmp_path) -> Path:
    """A tagged repository with this template, and nothing of perfgen."""
    repo = tmp_path / "template"
    repo.mkdir()
    bundle.copy_template(repo)
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


PORTABLE = ROOT / "examples" / "portable" / "project"


def check_portable(folder: Path) -> None:
    """Every file but two: the answers say where the template is, and this plan has no other name."""
    for path in sorted(PORTABLE.rglob("*")):
        name = path.relative_to(PORTABLE)
        if path.is_file() and "__pycache__" not in name.parts and name.name != ".copier-answers.yml":
            assert (folder / name).read_bytes() == path.read_bytes(), name


@pytest.mark.core
def test_a_bare_copy_needs_no_trust_and_is_the_portable_example(template, tmp_path):
    run(*COPIER, "copy", "--defaults", "--quiet", str(template), str(tmp_path / "mine"))
    check_portable(tmp_path / "mine")


def test_a_bare_copy_from_the_address_of_a_repository_and_a_tag(template, tmp_path):
    (template / "templates/project/Makefile.jinja").write_text("later\n")
    commit(template, "v0.2.0")
    url = f"git+file://{template}"
    run(*COPIER, "copy", "--defaults", "--quiet", "--vcs-ref", "v0.1.0", url, str(tmp_path / "mine"))
    check_portable(tmp_path / "mine")
    assert yaml.safe_load((tmp_path / "mine" / ".copier-answers.yml").read_text())["_commit"] == "v0.1.0"


def test_a_bare_copy_from_a_folder_without_git(tmp_path):
    """As the wheel carries it."""
    (tmp_path / "bundle").mkdir()
    bundle.copy_template(tmp_path / "bundle")
    run(*COPIER, "copy", "--defaults", "--quiet", str(tmp_path / "bundle"), str(tmp_path / "mine"))
    check_portable(tmp_path / "mine")


PRINTED = re.compile(r"\bplan\.([a-z_]+)")


def list_printed_keys() -> set[str]:
    """The keys of a plan that a template reads, of itself or of its path. Of plan.json's own skipping: see copier.yml."""
    texts = [str(path.relative_to(ROOT)) for path in (ROOT / "templates").rglob("*")]
    texts += [path.read_text(encoding="utf-8") for path in (ROOT / "templates").rglob("*.jinja")]
    texts += [path.read_text(encoding="utf-8") for path in (ROOT / "templates").rglob("*.md")]
    return {key for text in texts for key in PRINTED.findall(text)} - {"json"}


@pytest.mark.core
@pytest.mark.parametrize("case", sorted((ROOT / "examples").glob("*/case.toml")), ids=lambda path: path.parent.name)
def test_the_answers_hold_what_templates_print_and_no_more(case, tmp_path):
    project = case.parent / "project"
    kept = yaml.safe_load((project / ".copier-answers.yml").read_text(encoding="utf-8"))["plan"]
    complete = json.loads((project / "plan.json").read_text(encoding="utf-8"))
    schema = json.loads((ROOT / "generator/plan.schema.json").read_text(encoding="utf-8"))["properties"]
    assert list_printed_keys() < set(schema)
    assert set(kept) == list_printed_keys() & set(complete) < set(complete)  # a server has no run, a run no server
    assert kept == {key: complete[key] for key in kept}

    render.render(kept | {"perfgen": complete["perfgen"]}, tmp_path)
    for path in sorted(project.rglob("*")):
        name = path.relative_to(project)
        if path.is_file() and name.name != "plan.json" and "__pycache__" not in name.parts:
            assert (tmp_path / name).read_bytes() == path.read_bytes(), name


def test_a_plan_from_a_file_gives_what_init_gives(template, tmp_path):
    data = answers(tmp_path / "plan.yml", seq_len=128, global_batch=4)
    run(*COPIER, "copy", "--defaults", "--quiet", "--data-file", str(data), str(template), str(tmp_path / "copied"))
    (tmp_path / "rendered").mkdir()
    files = render.render(yaml.safe_load(data.read_text())["plan"], tmp_path / "rendered")
    assert len(files) > 12
    for path in files:
        if path.name != ".copier-answers.yml":
            assert (tmp_path / "copied" / path).read_bytes() == (tmp_path / "rendered" / path).read_bytes(), path


def start_project(folder: Path, template: Path, data: Path) -> Path:
    run(*COPIER, "copy", "--defaults", "--quiet", "--data-file", str(data), str(template), str(folder))
    run(*GIT, "init", "-q", cwd=folder)
    commit_all(folder)
    return folder


def commit_all(folder: Path) -> None:
    run(*GIT, "add", "-A", cwd=folder)
    run(*GIT, "commit", "-qm", "mine", cwd=folder)


def read_plan(folder: Path) -> dict:
    return json.loads((folder / "plan.json").read_text(encoding="utf-8"))


def release(template: Path) -> None:
    """A newer template: another Makefile."""
    newer = template / "templates/project/Makefile.jinja"
    newer.write_text(newer.read_text() + "\n# newer template\n")
    commit(template, "v0.2.0")


def test_an_update_with_a_newer_template_and_a_new_plan_keeps_hand_edits(template, tmp_path):
    mine = start_project(tmp_path / "mine", template, answers(tmp_path / "first.yml", seq_len=128, global_batch=4))
    train = mine / "train.py"
    train.write_text(train.read_text().replace("def main() -> None:\n", "def main() -> None:\n    print('mine')\n", 1))
    (mine / "report.html").unlink()
    commit_all(mine)

    release(template)
    second = answers(tmp_path / "second.yml", seq_len=256, global_batch=8)
    run(*COPIER, "update", "--defaults", "--quiet", "--data-file", str(second), cwd=mine)

    assert "print('mine')" in train.read_text()
    assert "# newer template" in (mine / "Makefile").read_text()
    assert yaml.safe_load((mine / "config.yaml").read_text())["seq_len"] == 256
    assert read_plan(mine) == yaml.safe_load(second.read_text())["plan"]
    assert not (mine / "report.html").exists()
    assert not list(mine.rglob("*.rej"))
    for path in mine.rglob("*"):
        assert not path.is_file() or ".git" in path.parts or b"<<<<<<<" not in path.read_bytes(), path


@pytest.mark.core
def test_an_update_without_a_new_plan_leaves_the_plan_whole(template, tmp_path):
    first = answers(tmp_path / "first.yml", seq_len=128, global_batch=4)
    mine = start_project(tmp_path / "mine", template, first)
    before = (mine / "plan.json").read_bytes()
    assert json.loads(before) == yaml.safe_load(first.read_text())["plan"]
    release(template)
    run(*COPIER, "update", "--defaults", "--quiet", cwd=mine)
    assert "# newer template" in (mine / "Makefile").read_text()
    assert (mine / "plan.json").read_bytes() == before
    assert yaml.safe_load((mine / ".copier-answers.yml").read_text())["_commit"] == "v0.2.0"
    assert yaml.safe_load((mine / "config.yaml").read_text())["seq_len"] == 128


def test_a_hand_edit_that_collides_is_merged_with_this_plan(template, tmp_path):
    """Copier merges such a file from a render of its own, into which a hidden answer would not come (the default would)."""
    mine = start_project(tmp_path / "mine", template, answers(tmp_path / "a.yml", seq_len=128, global_batch=4))
    config = mine / "config.yaml"
    config.write_text(config.read_text().replace("seq_len: 128", "seq_len: 100"))
    commit_all(mine)
    second = answers(tmp_path / "b.yml", seq_len=512, global_batch=4)
    run(*COPIER, "update", "--vcs-ref=:current:", "--defaults", "--quiet", "--data-file", str(second), cwd=mine)
    text = config.read_text()
    portable = yaml.safe_load((PORTABLE / "config.yaml").read_text())["seq_len"]
    assert "seq_len: 100" in text and "seq_len: 512" in text and f"seq_len: {portable}" not in text
    assert read_plan(mine)["yours"]["seq_len"] == 512


def test_a_new_plan_on_the_same_template(template, tmp_path):
    mine = start_project(tmp_path / "mine", template, answers(tmp_path / "a.yml", seq_len=128))
    second = answers(tmp_path / "b.yml", seq_len=512)
    run(*COPIER, "update", "--vcs-ref=:current:", "--defaults", "--quiet", "--data-file", str(second), cwd=mine)
    assert yaml.safe_load((mine / "config.yaml").read_text())["seq_len"] == 512
    assert read_plan(mine) == yaml.safe_load(second.read_text())["plan"]


def test_the_answers_of_one_project_make_another(template, tmp_path):
    mine = start_project(tmp_path / "mine", template, answers(tmp_path / "a.yml", seq_len=128))
    kept = yaml.safe_load((mine / ".copier-answers.yml").read_text())
    (tmp_path / "kept.yml").write_text(yaml.safe_dump({"plan": kept["plan"]}))
    again = start_project(tmp_path / "again", template, tmp_path / "kept.yml")
    assert (again / "train.py").read_bytes() == (mine / "train.py").read_bytes()
    assert read_plan(again) == kept["plan"]  # what there is of it
