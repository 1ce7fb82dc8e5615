"""launch/ of projects, read by Kubeflow's models and by SkyPilot in an environment of their own: `make test-launchers`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml
from test_launch import CASES, render_case

READ = Path(__file__).with_name("read.py")
pytestmark = [
    pytest.mark.launchers,
    pytest.mark.skipif(
        "PERFGEN_LAUNCHERS" not in os.environ, reason="PERFGEN_LAUNCHERS names no environment: make test-launchers"
    ),
]


def read(project: Path, home: Path) -> subprocess.CompletedProcess[str]:
    python = Path(os.environ["PERFGEN_LAUNCHERS"]) / "bin" / "python"
    environment = {**os.environ, "HOME": str(home)}  # SkyPilot keeps a catalogue there
    environment.pop("PYTHONPATH", None)
    words = [python, READ, project.resolve()]
    return subprocess.run(words, env=environment, cwd=home, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.mark.parametrize("hardware", CASES)
def test_the_files_are_read_by_what_reads_them(hardware, tmp_path, home):
    project = render_case(tmp_path / "p", hardware)
    done = read(project, home)
    assert done.returncode == 0, done.stdout + done.stderr
    launch = json.loads((project / "plan.json").read_text(encoding="utf-8"))["launch"]
    counts = json.loads(done.stdout.splitlines()[-1])
    assert set(counts) == {path.name for path in (project / "launch").glob("*.yaml")}
    for nodes, per_node in counts.values():
        assert nodes == launch["nodes"] and per_node in (None, launch["per_node"])


def test_a_misspelt_key_is_seen(tmp_path, home):
    project = render_case(tmp_path / "p", "8xh100-sxm-80gb")
    path = project / "launch" / "trainjob.yaml"
    documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    documents[-1]["spec"]["trainer"]["numNode"] = 3
    path.write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    done = read(project, home)
    assert done.returncode and "numNode" in done.stderr
