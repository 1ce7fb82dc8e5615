"""launch/ of projects, read by Kubeflow's models and by SkyPilot in an environment of their own: `make test-launchers`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml
from launch_files import count_used
from test_launch import CASES, FORMS, OF_A_FORM, draw_projects, render_case

READ = Path(__file__).with_name("read.py")
pytestmark = [
    pytest.mark.launchers,
    pytest.mark.skipif(
        "PERFGEN_LAUNCHERS" not in os.environ, reason="PERFGEN_LAUNCHERS names no environment: make test-launchers"
    ),
]


def read(home: Path, *projects: Path, seconds: float = 300) -> subprocess.CompletedProcess[str]:
    python = Path(os.environ["PERFGEN_LAUNCHERS"]) / "bin" / "python"
    environment = {**os.environ, "HOME": str(home)}  # SkyPilot keeps a catalogue there
    environment.pop("PYTHONPATH", None)
    words = [python, READ, *(project.resolve() for project in projects)]
    return subprocess.run(
        words, env=environment, cwd=home, capture_output=True, text=True, timeout=seconds, check=False
    )


def check_counts(project: Path, counts: dict[str, tuple[int, int | None]]) -> None:
    launch = json.loads((project / "plan.json").read_text(encoding="utf-8"))["launch"]
    assert set(counts) == {path.name for path in (project / "launch").glob("*.yaml")}
    for name, (nodes, per_node) in counts.items():
        used = count_used(per_node, launch["per_node"]) if name == "sky.yaml" else per_node
        assert nodes == launch["nodes"] and used in (None, launch["per_node"])


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.mark.parametrize("hardware", CASES)
def test_the_files_are_read_by_what_reads_them(hardware, tmp_path, home):
    project = render_case(tmp_path / "p", hardware)
    done = read(home, project)
    assert done.returncode == 0, done.stdout + done.stderr
    check_counts(project, json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("form", ["", *FORMS])
def test_300_drawn_plans_are_read_by_what_reads_them(form, tmp_path, home):
    projects = list(draw_projects(form, tmp_path, OF_A_FORM, first=1000))
    done = read(home, *projects, seconds=900)
    assert done.returncode == 0, done.stdout + done.stderr
    for project, line in zip(projects, done.stdout.splitlines()[-len(projects) :], strict=True):
        check_counts(project, json.loads(line))


def test_a_misspelt_key_is_seen(tmp_path, home):
    project = render_case(tmp_path / "p", "8xh100-sxm-80gb")
    path = project / "launch" / "trainjob.yaml"
    documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    documents[-1]["spec"]["trainer"]["numNode"] = 3
    path.write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    done = read(home, project)
    assert done.returncode and "numNode" in done.stderr
