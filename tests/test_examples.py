"""The golden record: the same bytes, clean by the linter and the type checker, and the CPU ones really run."""

from __future__ import annotations

import importlib.util
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
spec = importlib.util.spec_from_file_location("rewrite", ROOT / "examples" / "rewrite.py")
rewrite = importlib.util.module_from_spec(spec)
spec.loader.exec_module(rewrite)
CASES = rewrite.list_cases()
BIN = Path(sys.executable).parent


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and "__pycache__" not in p.parts
    }


def test_there_are_the_promised_cases():
    assert len(CASES) >= 8


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_same_bytes(case, tmp_path):
    rewrite.write_case(case, tmp_path / case.name)
    new, old = tree(tmp_path / case.name), tree(case / "project")
    assert list(new) == list(old)
    for name in new:
        assert new[name] == old[name], f"{name} differs: read the change, then `make golden`"


def test_portable_yml_is_the_current_portable_plan():
    assert (ROOT / "portable.yml").read_text(encoding="utf-8") == rewrite.dump_portable_plan()


def lint(case: Path, *command: str) -> None:
    """Run a checker inside the project, with its own settings, as its owner would."""
    inside = case / "project"
    done = subprocess.run(
        [str(BIN / command[0]), *command[1:]], cwd=inside, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_linted(case):
    lint(case, "ruff", "check", "--no-cache", "--select=E,F,I,UP,B,SIM,C4,RUF,PTH", ".")
    lint(case, "ruff", "format", "--no-cache", "--check", ".")


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_dockerfile_and_yaml(case):
    if (case / "project" / "Dockerfile").exists():  # Apple's GPUs are in no container
        lint(case, "hadolint", "Dockerfile")
    settings = sorted(path.name for path in (case / "project").glob("*.yaml"))
    assert "config.yaml" in settings
    lint(case, "yamllint", "--strict", "-d", "{extends: relaxed, rules: {line-length: disable}}", *settings)
    for script in (case / "project").glob("*.s[bh]*"):
        lint(case, "shellcheck", script.name)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_typed(case):
    # against an interpreter without the libraries: their own annotations do not describe them (tokenizer | None, ...);
    # what is passed to them is the contract test's matter
    lint(case, "ty", "check", "--python", sys.base_prefix, "--ignore", "import-not-found")


RUNNABLE = [c for c in CASES if c.name in ("cpu-2-cores-sample", "portable")]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_the_readme_names_every_module_and_every_way_to_start(case):
    """A server's was silent about 35 of its files, and about what starts it under Kubernetes and Slurm."""
    project = ROOT / "examples" / case.name / "project"
    files = (project / "README.md").read_text(encoding="utf-8").split("## Files")[-1]
    named = [path for pattern in ("*.py", "*.sh", "*.k8s.yaml", "*.sbatch") for path in project.glob(pattern)]
    assert [path.name for path in named if f"`{path.name}`" not in files] == []


@pytest.mark.slow
@pytest.mark.parametrize("case", RUNNABLE, ids=lambda c: c.name)
def test_trains_resumes_after_a_kill_and_generates(case, tmp_path):
    project = tmp_path / "project"
    shutil.copytree(case / "project", project)
    out = tmp_path / "runs"
    # the same few sequences again and again, so that the loss must fall
    text = (project / "sample" / "text.txt").read_text(encoding="utf-8")
    (project / "sample" / "text.txt").write_text(text[:20_000], encoding="utf-8")
    train = [
        sys.executable,
        "train.py",
        "--output_dir",
        str(out),
        "--learning_rate",
        "1e-3",
        "--save_steps",
        "2",
        "--warmup_steps",
        "0",
    ]

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, timeout=900)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(*train, "--max_steps", "3", "--lr_scheduler_type", "constant", "--save_strategy", "steps")
    first = json.loads((out / "run.json").read_text())
    assert len(first["losses"]) == 3 and all(map(math.isfinite, first["losses"]))
    # what a kill in the middle of a save leaves behind, and the same of somebody else
    for name in ("checkpoint-8", "checkpoint-9"):
        (out / name).mkdir()
        (out / name / "trainer_state.json").write_text("{")
    (out / "checkpoint-9" / "unfinished.txt").write_text("")
    said = run(*train, "--max_steps", "6", "--lr_scheduler_type", "constant")
    assert "checkpoint-9 was begun when a run was ended: removed" in said and not (out / "checkpoint-9").exists()
    assert "checkpoint-8 is not resumed" in said and (out / "_set-aside" / "checkpoint-8").is_dir()
    second = json.loads((out / "run.json").read_text())
    assert second["resumed_from"] in (2, 3) and second["finished_step"] == 6
    assert second["losses"][-1] < first["losses"][0]
    assert (out / "loss.svg").is_file()
    answer = run(sys.executable, "infer.py", "--model", str(out), "--prompt", "To be, or not", "--max_new_tokens", "4")
    assert "tokens/s" in answer
