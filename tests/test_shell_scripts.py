"""The scripts of a project work in its folder, whatever the shell that starts them has set."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
STARTED = "#!/bin/sh\npwd -P\nexit 0\n"


@pytest.mark.parametrize(
    ("case", "script", "words"),
    [
        ("rtx-4090-8b-serve", "serve.sh", []),
        ("rtx-4090-8b-serve", "container.sh", []),
        ("a100-x8-70b-full", "train.sh", []),
        ("cpu-2x4-135m-full", "launch/mpi.sh", ["hosts"]),
        ("cpu-2x4-135m-full", "launch/ssh.sh", ["first", "second"]),
    ],
)
def test_a_path_of_folders_to_change_to_leads_nowhere_else(tmp_path, case, script, words):
    """CDPATH, where it is exported, led to a project of the same name: the container trained that."""
    project, other, tools = tmp_path / "here" / "p", tmp_path / "elsewhere" / "p", tmp_path / "tools"
    shutil.copytree(ROOT / "examples" / case / "project", project)
    shutil.copytree(project, other)
    (project / "hosts").write_text("node\n")
    tools.mkdir()
    for name in ("python", "docker", "torchrun", "accelerate", "mpirun", "ssh"):
        (tools / name).write_text(STARTED)
        (tools / name).chmod(0o755)
    (project / "config.yaml").write_text("model: of/the-hub\n")
    env = os.environ | {"CDPATH": str(other.parent), "PATH": f"{tools}:{os.environ['PATH']}", "MASTER_ADDR": "node"}
    done = subprocess.run(
        ["bash" if "launch" in script else "sh", f"p/{script}", *words],
        cwd=project.parent,
        env=env | {"HF_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 and set(done.stdout.split()) == {str(project.resolve())}, done.stderr


OLD = """#!/bin/sh
test "$1" = -c && exec {python} -c "import sys; sys.version_info = ({version}, 1); $2"
echo "$@" >> {log}
exit 1
"""


@pytest.mark.parametrize(
    ("folder", "target", "version", "refused"),
    [
        ("examples/tpu-v5e-8-1.5b-full/project", "setup", (3, 10), True),
        ("examples/tpu-v5e-8-1.5b-full/project", "setup", (3, 11), False),
        ("examples/rtx-4090-8b-lora/project", "train", (3, 14), True),
        ("examples/rtx-4090-8b-lora/project", "lock", (3, 10), True),
        ("examples/cpu-2-cores-serve/project", "convert", (3, 10), True),
        ("examples/cpu-2-cores-serve/project", "convert", (3, 13), False),
        ("", "demo", (3, 10), True),
        ("", "demo", (3, 12), False),
    ],
)
def test_a_python_that_is_too_old_is_refused_before_anything_is_downloaded(tmp_path, folder, target, version, refused):
    """A TPU VM has Python 3.10: torch was downloaded there, and then its packages were refused by pip."""
    project, log = tmp_path / "p", tmp_path / "log"
    project.mkdir()
    for path in (ROOT / folder).iterdir():
        if path.is_file():
            shutil.copy(path, project)
    python = tmp_path / "old"
    python.write_text(OLD.format(python=shutil.which("python3"), version="{}, {}".format(*version), log=log))
    python.chmod(0o755)
    done = subprocess.run(["make", target, f"PYTHON={python}"], cwd=project, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert ("is Python {}.{}, and ".format(*version) in done.stderr) == refused, done.stderr
    assert log.exists() != refused and not (project / ".venv").exists()
