"""Installed from its own wheel into an empty environment, perfgen writes the same project."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """An environment that holds perfgen from its wheel; the dependencies come from the running one, nothing from the network."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=600)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", str(wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=600)
    paths = {"purelib": sysconfig.get_path("purelib"), "platlib": sysconfig.get_path("platlib")}
    (site,) = (folder / "env").glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text("\n".join(sorted(set(paths.values()))) + "\n")
    return folder / "env" / "bin"


def run(installed: Path, cwd: Path, *command: str) -> subprocess.CompletedProcess:
    environment = {"PATH": str(installed), "HOME": str(cwd), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [str(installed / command[0]), *command[1:]],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_it_is_the_wheel_that_runs(installed, tmp_path):
    where = run(
        installed, tmp_path, "python", "-c", "import generator, hwdetect; print(generator.__file__, hwdetect.__file__)"
    ).stdout
    assert where.count(str(installed.parent)) == 2


def test_init_works_offline_and_writes_what_a_checkout_writes(installed, tmp_path):
    run(
        installed,
        tmp_path,
        "perfgen",
        "init",
        "mine",
        "--sample",
        "--hardware",
        "portable",
        "--seq-len",
        "256",
        "--global-batch",
        "8",
    )
    example = ROOT / "examples" / "portable" / "project"
    for name in (
        "train.py",
        "data.py",
        "infer.py",
        "checkpoints.py",
        "stopping.py",
        "run_report.py",
        "config.yaml",
        "sample/text.txt",
        "Makefile",
    ):
        ours = (tmp_path / "mine" / name).read_text().replace("mine", "portable")
        assert ours == (example / name).read_text().replace("mine", "portable"), name


def test_every_command_answers(installed, tmp_path):
    for command in (
        ["detect", "--json"],
        ["techniques"],
        ["devices"],
        ["plan", "--sample", "--hardware", "1xt4", "--mode", "infer"],
    ):
        assert run(installed, tmp_path, "perfgen", *command).stdout


def test_the_wheel_carries_a_complete_template(installed, tmp_path):
    """`copier copy` of what is installed, without trust, gives what a checkout gives."""
    where = "from generator import bundle; print(bundle.ROOT)"
    root = run(installed, tmp_path, "python", "-c", where).stdout.strip()
    run(installed, tmp_path, "python", "-m", "copier", "copy", "--defaults", "--quiet", root, "mine")
    example = ROOT / "examples" / "portable" / "project"
    for name in ("train.py", "plan.json", "README.md", "config.yaml"):
        assert (tmp_path / "mine" / name).read_bytes() == (example / name).read_bytes(), name
