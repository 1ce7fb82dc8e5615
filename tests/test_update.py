"""`perfgen update` and `init --diff`, by the command line: what is asked anew, what is said, what is merged, what is refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from git_command import GIT
from projects import MODEL, TEXT

from generator import bundle, cli
from generator.case.request import Request
from generator.emit.document import dump_answers
from generator.emit.emitted import FILE, read_record
from generator.errors import PerfgenError
from generator.pipeline import document_request

ROOT = Path(__file__).resolve().parent.parent
SMALL = ("--hardware", "cpu:2", "--seq-len", "16", "--global-batch", "4", "--max-steps", "8", "--offline")
PINS = ("--pin", "compile=off", "--pin", "precision=fp32")


def perfgen(*words: object) -> tuple[int, str]:
    """Exit code and all output of a command in this process, as ``main`` would end it."""
    done = CliRunner().invoke(cli.perfgen, [str(word) for word in words])
    if isinstance(done.exception, PerfgenError):
        return done.exception.code, f"{done.output}{done.exception}"
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


def update(project: Path, *words: object, code: int = 0) -> str:
    result, output = perfgen("update", project, "--yes", "--no-smoke", *words)
    assert result == code, output
    return output


def read(folder: Path) -> dict[str, bytes]:
    paths = [p for p in sorted(folder.rglob("*")) if p.is_file() and ".perfgen" not in p.parts]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with a model, data and a project made of them, p, which is kept as it was."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "m").mkdir()
    (folder / "m" / "config.json").write_text(json.dumps(MODEL))
    (folder / "d.txt").write_text(TEXT)
    sources = ("--model", folder / "m" / "config.json", "--data", folder / "d.txt")
    code, output = perfgen("init", folder / "p", *sources, *SMALL, *PINS, "--no-smoke")
    assert code == 0, output
    shutil.copytree(folder / "p", folder / "kept", symlinks=True)
    return folder


@pytest.fixture
def project(made) -> Path:
    """The project as it was made."""
    shutil.rmtree(made / "p", ignore_errors=True)
    (made / "d.txt").write_text(TEXT)
    return Path(shutil.copytree(made / "kept", made / "p", symlinks=True))


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_nothing_changes_where_nothing_is_new(project):
    before = read(project)
    assert "the plan is the same" in (output := update(project)) and "nothing to do" in output
    assert read(project) == before


def test_what_was_asked_for_stays_and_defaults_are_decided_anew(project):
    kept = json.loads((project / "plan.json").read_text())["request"]
    assert kept["seq_len"] == 16 and kept["data"] is None and "learning_rate" not in kept
    output = update(project, "--seq-len", 32)
    assert "seq_len 16 → 32: --seq-len" in output and "config.yaml" in output
    after = json.loads((project / "plan.json").read_text())
    assert (
        after["yours"] | {"seq_len": 16} == json.loads((project / ".perfgen/backup-1/plan.json").read_text())["yours"]
    )
    assert after["request"] == kept | {"seq_len": 32}
    output = update(project, "--forget", "seq-len", "--forget", "max-steps")
    assert "seq_len" not in json.loads((project / "plan.json").read_text())["request"]
    assert "seq_len 32 → 64: a default:" in output


def test_an_update_gives_what_init_would_give(project):
    update(project, "--seq-len", 32, "--eval", "none")
    fresh = project.parent / "fresh-p" / "p"
    sources = ("--model", project.parent / "m" / "config.json", "--data", project.parent / "d.txt")
    code, output = perfgen("init", fresh, *sources, *SMALL, *PINS, "--seq-len", 32, "--eval", "none", "--no-smoke")
    assert code == 0, output
    differing = {name for name in read(fresh) if read(fresh)[name] != read(project)[name]}
    assert differing <= {"plan.json", "config.yaml", "README.md", ".copier-answers.yml"}, "where the sources are"
    assert read(project).keys() == read(fresh).keys()


def test_edits_stay_and_a_removed_file_stays_away(project):
    edit(project / "train.py", "def main() -> None:\n", "def main() -> None:\n    print('mine')\n")
    edit(project / "config.yaml", "\nseq_len: 16\n", "\nseq_len: 16\n# mine\n")
    (project / "report.html").unlink()
    (project / "runs").mkdir()
    (project / "runs" / "model.bin").write_bytes(b"\0")
    output = update(project, "--learning-rate", 1e-3)
    assert "print('mine')" in (project / "train.py").read_text()
    config = (project / "config.yaml").read_text()
    assert "\nseq_len: 16\n# mine\n" in config and "learning_rate: 0.001\n" in config
    assert "stays deleted" in output and not (project / "report.html").exists()
    assert (project / "runs" / "model.bin").read_bytes() == b"\0"


def test_why_answers_for_the_plan_and_names_what_config_yaml_says_by_hand(project):
    edit(project / "config.yaml", "\nseq_len: 16\n", "\nseq_len: 20\n")
    done = CliRunner().invoke(cli.perfgen, ["why", "seq_len", "--project", str(project)], catch_exceptions=False)
    assert done.exit_code == 0 and done.stdout.startswith("seq_len = 16\n")
    assert "config.yaml says seq_len: 20, and the plan is for 16" in done.stderr


def test_conflicts_are_marked_named_and_end_in_5(project):
    edit(project / "config.yaml", "\nseq_len: 16\n", "\nseq_len: 20\n")
    output = update(project, "--seq-len", 32, code=5)
    marked = "<<<<<<< before updating\nseq_len: 20\n=======\nseq_len: 32\n>>>>>>> after updating\n"
    assert marked in (project / "config.yaml").read_text() and "conflicts in config.yaml" in output
    assert "config.yaml says seq_len: 20, and the plan is for 32" in output
    assert "settle them there and remove the markers, then `make smoke`" in output
    assert "settle them" in update(project, code=5)
    (project / "config.yaml").write_text((project / "config.yaml").read_text().replace(marked, "seq_len: 32\n"))
    assert "nothing to do" in update(project)


def test_a_form_with_another_loop_and_back_keeps_an_edited_loop(project):
    """Four processes: the loop that the Trainer's form has not stays, and stands beside the new one where a form has one again."""
    four = ("--hardware", "4xcpu:1", "--pin", "precision=fp32", "--pin")
    update(project, *four, "parallelism=tensor-fsdp2")
    edit(project / "loop.py", "\n", "\n# mine\n")
    edit(project / "train.py", "def main() -> None:\n", "def main() -> None:\n    print('mine')\n")
    output = update(project, *four, "parallelism=ddp")
    assert "kept: the new plan has none, but you changed it" in output and not (project / "division.py").exists()
    output = update(project, *four, "parallelism=tensor-fsdp2", code=5)
    assert "take over what you want of loop.py.perfgen-new, then `make smoke`" in output and "markers" not in output
    assert "# mine" in (project / "loop.py").read_text() and "print('mine')" in (project / "train.py").read_text()
    assert (project / "division.py").exists() and (project / "loop.py.perfgen-new").exists()


def test_json_is_the_same_as_data(project):
    edit(project / "config.yaml", "\nseq_len: 16\n", "\nseq_len: 20\n")
    words = ("update", str(project), "--yes", "--no-smoke", "--json", "--seq-len", "32")
    done = subprocess.run([sys.executable, "-m", "generator.cli", *words], capture_output=True, text=True, cwd=ROOT)
    answer = json.loads(done.stdout)
    assert done.returncode == answer["error"]["exit_code"] == 5 and answer["conflicts"] == ["config.yaml"]
    assert {"about": "yours", "name": "seq_len", "before": "16", "after": "32"}.items() <= answer["changes"][0].items()
    kinds = {file["name"]: file["kind"] for file in answer["files"]}
    assert kinds["config.yaml"] == "conflict" and kinds["train.py"] == "same" and kinds["plan.json"] == "updated"
    assert answer["written"] and Path(answer["backup"]).is_dir()


def test_an_update_for_another_machine_says_what_to_copy_there(project):
    output = update(project, "--hardware", "rtx-4090")
    assert "this plan is for " in output and "rsync -aL" in output
    assert f"cd {project.name} && make setup && make smoke && make train" in output


def test_a_dry_run_writes_nothing(project):
    before = read(project)
    code, output = perfgen("update", project, "--dry-run", "--full", "--seq-len", 32)
    assert code == 0 and "-seq_len: 16\n+seq_len: 32\n" in output
    assert read(project) == before and not (project / ".perfgen" / "lock").exists()


def test_off_a_terminal_somebody_must_have_answered(project):
    code, output = perfgen("update", project, "--seq-len", 32)
    assert code == 2 and "--yes" in output


def test_the_difference_from_init_in_words_then_files(project):
    sources = ("--model", project.parent / "m" / "config.json", "--data", project.parent / "d.txt")
    words = ("init", project, *sources, *SMALL, *PINS, "--seq-len", 32, "--diff")
    edit(project / "train.py", "def main() -> None:\n", "def main() -> None:\n    print('mine')\n")
    code, output = perfgen(*words)
    assert code == 7 and output.startswith("yours    seq_len 16 → 32: --seq-len\n") and len(output.splitlines()) < 30
    assert "updated: it was edited by hand" in output and "-seq_len: 16" not in output
    code, output = perfgen("init", project, "--diff")
    assert code == 2 and f"`perfgen update {project}`, which takes them from the project" in output
    code, output = perfgen(*words, "--full")
    assert code == 7 and "-seq_len: 16\n+seq_len: 32\n" in output


def test_what_runs_measured_is_no_difference_from_init(project):
    """`init` itself smoke-runs, and a check in CI would have found its own figures in report.html."""
    words = ("init", project, "--model", project.parent / "m" / "config.json", "--data", project.parent / "d.txt")
    same = (*words, *SMALL, *PINS, "--diff")
    assert perfgen(*same)[0] == 0
    for name in ("smoke", "run"):
        section = re.compile(rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
        page = (project / "report.html").read_text(encoding="utf-8")
        filled, times = section.subn(r"\g<1><p>measured</p>\n\g<2>", page)
        (project / "report.html").write_text(filled, encoding="utf-8")
        assert times == 1
    assert perfgen(*same)[0] == 0
    edit(project / "report.html", "<h2>", "<h2>mine ")
    code, output = perfgen(*same)
    assert code == 7 and "report.html" in output and "edited by hand" in output and "+1 -1" in output


def test_no_path_of_the_planning_machine(project, made):
    files = read(project)
    for name in (".copier-answers.yml", FILE):
        text = files.get(name) or b"".join(
            e.content for n, e in (read_record(project) or {}).items() if n == ".copier-answers.yml"
        )
        assert b"_src_path: .perfgen\n" in text and str(ROOT).encode() not in text and b"_commit" not in text
    assert str(made) not in json.dumps(json.loads(files["plan.json"])["request"])


def test_plain_copier_says_that_it_cannot_and_changes_nothing(project):
    git = (*GIT, "-C", str(project))
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "x")):
        subprocess.run([*git, *words], check=True, capture_output=True)
    listed = subprocess.run([*git, "ls-files", ".perfgen"], capture_output=True, text=True).stdout.split()
    assert listed == [f".perfgen/{name}" for name in (".gitignore", "copier.yml", "emitted.zip")]
    for command, words in (("update", "old template references"), ("recopy", "`perfgen update`")):
        copier = [sys.executable, "-m", "copier", command, "--defaults", "--overwrite"]
        copier.remove("--overwrite") if command == "update" else None
        done = subprocess.run(copier, cwd=project, capture_output=True, text=True)
        assert words in done.stderr and "Traceback" not in done.stderr
        assert subprocess.run([*git, "status", "--short"], capture_output=True, text=True).stdout == ""


def test_sources_that_are_gone_are_named(project):
    (project.parent / "d.txt").unlink()
    assert "give --data, or put it there" in update(project, code=2)
    (project.parent / "other.txt").write_text(TEXT)
    assert "data" in update(project, "--data", project.parent / "other.txt")
    assert "nothing to do" in update(project), "the other is now the project's"


def test_another_source_of_the_same_name_takes_the_place_of_the_link(project):
    """config.yaml and the plan stay the same: what is trained on is what the link says."""
    other = project.parent / "other" / "d.txt"
    other.parent.mkdir(exist_ok=True)
    other.write_text(TEXT.replace("fox", "cat"))
    link = project / "data" / "d.txt"
    before = link.readlink()
    output = update(project, "--data", other, "--dry-run")
    assert f"data/d.txt leads to {before}, and will lead to {other}" in output and link.readlink() == before
    output = update(project, "--data", other)
    assert link.readlink() == other and "changed 0 files and 1 link of" in output
    assert "nothing to do" in update(project) and link.readlink() == other
    link.unlink()
    link.symlink_to(os.path.relpath(other, link.parent))
    assert "nothing to do" in update(project), "a link of the user's own, to the same"
    assert not link.readlink().is_absolute()
    link.unlink()
    link.write_text(TEXT)
    output = update(project, "--data", other)
    assert "data/d.txt is no link and stays as it is" in output and link.read_text() == TEXT


def test_parts_that_are_gone_are_read_no_more(project):
    """Of a pattern: the project reads all that matches it, and so links to parts of yesterday too."""
    for name, parts in (("one", "abc"), ("two", "ab")):
        (project.parent / name).mkdir(exist_ok=True)
        for part in parts:
            (project.parent / name / f"{part}.jsonl").write_text('{"text": "the quick brown fox"}\n' * 99)
    update(project, "--data", project.parent / "one" / "*.jsonl")
    (project / "data" / "mine.txt").symlink_to(project.parent / "d.txt")
    assert len(list((project / "data").glob("*.jsonl"))) == 3
    output = update(project, "--data", project.parent / "two" / "*.jsonl")
    links = sorted((project / "data").glob("*.jsonl"))
    assert [link.readlink() for link in links] == [project.parent / "two" / f"{part}.jsonl" for part in "ab"]
    assert "data/c.jsonl leads to" in output and (project / "data" / "mine.txt").is_symlink()


def test_a_damaged_record_is_refused_and_a_lost_one_made_again(project):
    packed = (project / FILE).read_bytes()
    (project / FILE).write_bytes(packed[:-90] + b"x" + packed[-89:])
    assert "git checkout" in update(project, code=4)
    (project / FILE).unlink()
    edit(project / "train.py", "def main() -> None:\n", "def main() -> None:\n    print('mine')\n")
    assert "plan.json, rendered again" in update(project, "--seq-len", 32)
    assert (project / FILE).is_file() and "print('mine')" in (project / "train.py").read_text()
    edit(project / "plan.json", '"perfgen": "', '"perfgen": "0.0.')
    (project / FILE).unlink()
    assert "what was emitted is not known" in update(project, code=4)


def test_a_project_of_an_older_perfgen_is_told_the_way_on(project):
    """It kept neither what it was asked for nor what it wrote, and called itself otherwise in the answers."""
    shutil.rmtree(project / ".perfgen")
    plan = json.loads((project / "plan.json").read_text())
    del plan["request"], plan["project"]["sources"]
    (project / "plan.json").write_text(json.dumps(plan))
    edit(project / ".copier-answers.yml", "_src_path: .perfgen", "_src_path: perfgen")
    before = read(project)
    output = update(project, "--seq-len", 32, code=2)
    assert "an older perfgen wrote it" in output and "perfgen init --overwrite" in output and "Undefined" not in output
    assert read(project) == before


def test_answers_that_were_edited_are_refused(project):
    edit(project / ".copier-answers.yml", "plan:", "# mine\nplan:")
    assert "is not the one that perfgen wrote" in update(project, code=4)


@pytest.mark.parametrize("name", ["plan.json", ".copier-answers.yml"])
def test_a_file_that_an_update_needs_comes_out_of_the_record(project, name):
    (project / name).unlink()
    output = update(project, code=5)
    assert f"unzip -p {FILE} {name} > {name}" in output and "no generated project" not in output
    assert (read_record(project) or {})[name].content


def test_what_is_no_project_is_refused(tmp_path):
    assert perfgen("update", tmp_path, "--yes")[0] == 5
    assert perfgen("update", tmp_path / "nothing", "--yes")[0] == 2
    assert perfgen("update", tmp_path, "--yes", "--forget", "banana")[0] == 2
    assert perfgen("update", tmp_path, "--yes", "--forget", "model")[0] == 2


def test_the_sample_takes_the_place_of_model_and_data(project):
    update(project, "--sample", "--seq-len", 64)
    plan = json.loads((project / "plan.json").read_text())
    assert plan["project"]["sample"] and not {"model", "data"} & plan["request"].keys()
    assert (project / "sample" / "text.txt").is_file() and "sample/text.txt" in plan["config"]["data"]


def test_two_at_once_do_not_interleave(project):
    words = [sys.executable, "-m", "generator.cli", "update", str(project), "--yes", "--no-smoke"]
    racers = [
        subprocess.Popen(
            [*words, "--seq-len", length], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
        )
        for length in ("32", "64", "48")
    ]
    outputs = [racer.communicate()[0] for racer in racers]
    codes = [racer.returncode for racer in racers]
    assert set(codes) <= {0, 5} and 0 in codes, outputs
    assert all("another perfgen" in output for output, code in zip(outputs, codes, strict=True) if code)
    assert "nothing to do" in update(project), "one plan, and the files of that plan"


def test_a_project_that_copier_made_is_updated_too(tmp_path):
    """Its template is not here and of this version, or here at a tag; after it the answers are right for plain Copier."""
    (tmp_path / "template").mkdir()
    bundle.copy_template(tmp_path / "template")
    git = (*GIT, "-C", str(tmp_path / "template"))
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "x"), ("tag", "v0.1.0")):
        subprocess.run([*git, *words], check=True, capture_output=True)
    (tmp_path / "plan.yml").write_text(dump_answers(document_request(Request(hardware="cpu:2", seq_len=64), "mine")))
    copy = ("copy", "--defaults", "--quiet", "--data-file", str(tmp_path / "plan.yml"))
    subprocess.run(
        [sys.executable, "-m", "copier", *copy, str(tmp_path / "template"), str(tmp_path / "mine")], check=True
    )
    edit(tmp_path / "mine" / "train.py", "def main() -> None:\n", "def main() -> None:\n    print('mine')\n")
    output = update(tmp_path / "mine", "--seq-len", 128)
    assert "emitted by Copier" in output and "print('mine')" in (tmp_path / "mine" / "train.py").read_text()
    answers = yaml.safe_load((tmp_path / "mine" / ".copier-answers.yml").read_text())
    assert (answers["_src_path"], answers["_commit"]) == (str(tmp_path / "template"), "v0.1.0")
    assert answers["plan"]["yours"]["seq_len"] == 128 and (tmp_path / "mine" / FILE).is_file()
    assert "nothing to do" in update(tmp_path / "mine")

    inside = (*GIT, "-C", str(tmp_path / "mine"))
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "x")):
        subprocess.run([*inside, *words], check=True, capture_output=True)
    (tmp_path / "plan.yml").write_text(dump_answers(document_request(Request(hardware="cpu:2", seq_len=256), "mine")))
    copier = (sys.executable, "-m", "copier", "update", "--vcs-ref=:current:", "--defaults", "--quiet", *copy[-2:])
    subprocess.run(copier, cwd=tmp_path / "mine", check=True)
    assert yaml.safe_load((tmp_path / "mine" / "config.yaml").read_text())["seq_len"] == 256
    output = update(tmp_path / "mine", "--learning-rate", 1e-3)
    assert "emitted by Copier" in output and "seq_len" not in output
    config = yaml.safe_load((tmp_path / "mine" / "config.yaml").read_text())
    assert (config["seq_len"], config["training"]["learning_rate"]) == (256, 1e-3)
    assert "print('mine')" in (tmp_path / "mine" / "train.py").read_text()

    edit(tmp_path / "mine" / ".copier-answers.yml", "_commit: v0.1.0", "_commit: v0.0.7")
    assert "use `copier update`" in update(tmp_path / "mine", code=4)


def test_a_template_that_came_with_a_project_runs_nothing(project):
    """git would run the filters that .git/config of a repository names, and the helper of a remote that has what is missing."""
    template, ran = project / "template", project.parent / "ran"
    template.mkdir()
    bundle.copy_template(template)
    (template / ".gitattributes").write_text("* filter=hostile\n")
    git = (*GIT, "-C", str(template))
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "x"), ("tag", "v0.1.0")):
        subprocess.run([*git, *words], check=True, capture_output=True)
    settings = {
        "filter.hostile.smudge": f"touch {ran}; cat",
        "core.fsmonitor": f"touch {ran}",
        "core.pager": f"touch {ran}",
    }
    settings |= {"remote.o.url": f"ext::touch {ran}", "remote.o.promisor": "true", "protocol.ext.allow": "always"}
    for name, value in settings.items():
        subprocess.run([*git, "config", name, value], check=True)
    edit(project / ".copier-answers.yml", "_src_path: .perfgen", "_commit: v0.1.0\n_src_path: ./template")
    assert "emitted by Copier from ./template" in update(project, "--dry-run") and not ran.exists()
    tree = subprocess.run([*git, "ls-tree", "v0.1.0", "copier.yml"], check=True, capture_output=True, text=True).stdout
    digest = tree.split()[2]
    (template / ".git" / "objects" / digest[:2] / digest[2:]).unlink()
    update(project, "--dry-run")  # perfgen's own template of that version
    assert not ran.exists()


@pytest.mark.slow
def test_a_kill_of_the_command_loses_nothing(project):
    """At moments all over its life, more of them where it writes; a second one goes on, and its result is right."""
    edit(project / "train.py", "def main() -> None:\n", "def main() -> None:\n    print('mine')\n")
    old, words = read(project), [sys.executable, "-m", "generator.cli", "update", str(project), "--yes", "--no-smoke"]
    mine = shutil.copytree(project, project.parent / "mine", symlinks=True)
    started = time.monotonic()
    subprocess.run([*words, "--seq-len", "32"], check=True, capture_output=True, cwd=ROOT)
    lasts, new = time.monotonic() - started, read(project)
    for share in (0.3, 0.6, 0.8, *(0.88 + 0.02 * step for step in range(6))):
        shutil.rmtree(project)
        shutil.copytree(mine, project, symlinks=True)
        child = subprocess.Popen(
            [*words, "--seq-len", "32"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT
        )
        time.sleep(share * lasts)
        child.send_signal(signal.SIGKILL)
        child.wait()
        there = read(project)
        assert all(there.get(name) in (old[name], new[name]) for name in old), share
        assert there.keys() == old.keys()
        update(project, "--seq-len", 32)
        assert read(project) == new, share


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_refused(project):
    project.chmod(0o500)
    (project / ".perfgen").chmod(0o500)
    try:
        assert "cannot write" in update(project, "--seq-len", 32, code=5)
    finally:
        project.chmod(0o700)
        (project / ".perfgen").chmod(0o700)
