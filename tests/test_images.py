"""Images that are built and run: `make test-image`, as root, with buildah and debootstrap (tests/container_engine.py)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import container_engine as engine
import pytest
import yaml
from projects import render_small_project
from test_containers import render_plan

import hwdetect
from generator.inputs.hardware import read_hardware
from hwdetect.types import Disk

pytestmark = pytest.mark.image
CALLER = 1234
"""whoever runs container.sh: neither root nor the image's own user"""


@pytest.fixture(scope="module")
def place():
    """A folder that every user may enter."""
    reason = engine.explain_absence()
    if reason:
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="perfgen-image-", dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def small(place):
    """A project that trains a tiny model from outside its folder, its image built, everything owned by the caller."""
    project = render_small_project(place / "small")
    (project / ".env").write_text("HF_TOKEN=secret\n")
    (project / "runs").mkdir()
    (project / "runs" / "weights.bin").write_bytes(b"0" * 1000)
    (project / "data").mkdir(exist_ok=True)
    shutil.copy(place / "small" / "d.txt", project / "data" / "some text.txt")
    (place / "scratch").mkdir()
    done = engine.build(project, "p", place / "scratch")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    shutil.rmtree(project / "runs")
    for path in (place / "small", *(place / "small").rglob("*")):
        os.chown(path, CALLER, CALLER)
    yield project
    engine.buildah("rmi", "p")


@pytest.fixture(scope="module")
def call(place):
    """Run container.sh as the caller."""
    with engine.serve_engine(place) as commands:
        home = place / "home"
        home.mkdir()
        os.chown(home, CALLER, CALLER)

        def run_container(project: Path, *words: str) -> subprocess.CompletedProcess:
            return subprocess.run(
                ["sh", "container.sh", *words],
                cwd=project,
                env={"PATH": f"{commands}:{os.environ['PATH']}", "HOME": str(home)},
                user=CALLER,
                group=CALLER,
                extra_groups=(),
                capture_output=True,
                text=True,
                check=False,
            )

        yield run_container


def write_values(project: Path, **values: str) -> None:
    config = yaml.safe_load((project / "config.yaml").read_text())
    (project / "config.yaml").write_text(yaml.safe_dump(config | values, sort_keys=False, width=1000))


def test_the_image_holds_no_run_no_data_and_no_secret(small, place):
    done = engine.run(["p", "find", "/project", "-type", "f"], {})
    files = set(engine.check(done).split("\n"))
    assert {"/project/train.py", "/project/config.yaml", "/project/pyproject.toml"} <= files
    assert not [f for f in files if "/runs/" in f or "/data/" in f or f.endswith(".env") or "__pycache__" in f]


def test_the_image_alone_starts_as_its_own_user(small):
    """Without container.sh, and without anything mounted."""
    done = engine.run(["p", "sh", "-c", "id -u && echo $HOME && touch runs/a && python train.py --help"], {})
    assert done.stdout.startswith("1000\n/home/trainer\n") and "--max_steps" in done.stdout, done.stderr


@pytest.mark.parametrize("where", ["absolute", "beside", "inside", "linked"])
def test_container_sh_trains_and_answers(small, place, call, where):
    """Model and data at a full path, in the folder beside the project, in the project's own, and behind a link of it."""
    folder = place / "small"
    values = {
        "absolute": {"model": str(folder / "m"), "data": str(folder / "d.txt")},
        "beside": {"model": "../m", "data": "../d.txt"},
        "inside": {"model": "../m", "data": "./data/some text.txt"},
        "linked": {"model": "../m", "data": "./link.txt"},
    }[where]
    if where == "linked":
        (small / "link.txt").symlink_to("../d.txt")
    write_values(small, **values, output_dir=f"runs-{where}")

    done = call(small, "python", "train.py", "--max_steps", "2", "--save_steps", "2", "--eval_strategy", "no", "--load_best_model_at_end", "False")  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    run = small / f"runs-{where}"
    assert len(json.loads((run / "run.json").read_text())["steps"]) == 1  # seconds of each after the first
    assert (run / "checkpoint-2").is_dir()
    assert {(p.stat().st_uid, p.stat().st_gid) for p in (run, *run.rglob("*"))} == {(CALLER, CALLER)}

    done = call(small, "python", "infer.py", "--prompt", "the quick", "--max_new_tokens", "4")
    assert done.returncode == 0 and "the finished run" in done.stderr, done.stderr[-3000:]
    assert json.loads((small / "infer.json").read_text())["answer"]


def make_offloading_machine(folder: Path) -> str:
    from dataclasses import replace

    machine = replace(read_hardware("8xa100-sxm-80gb"), disks=(Disk(role="work", path="/scratch", kind="nvme"),))
    (folder / "machine.json").write_text(json.dumps(hwdetect.to_json(machine)))
    return str(folder / "machine.json")


SFT = {"task": "sft", "data": "HuggingFaceH4/no_robots"}
CUDA = {
    "lora": {"hardware": "1xrtx-4090", "train": "lora"},
    "qlora": {"hardware": "1xrtx-4090", "train": "qlora"},
    "torchrun": {"hardware": "8xh100-sxm-80gb", "train": "full"},
    "toolkit": {"train": "full", "pins": (("parallelism", "zero3"), ("offload", "optimizer-nvme"))},
}


@pytest.mark.parametrize("form", CUDA)
def test_a_cuda_image_is_built_and_starts(place, form):
    """Every step of its Dockerfile, with the CPU's torch: packages, variables, user, files; train.py then asks for its GPUs."""
    folder = place / form
    folder.mkdir()
    given = CUDA[form] | ({"hardware": make_offloading_machine(folder)} if form == "toolkit" else {})
    project, document = render_plan(folder, **SFT, **given)
    done = engine.build(project, form, folder)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    try:
        done = engine.run([form], {}, network="host")  # launchers meet at localhost
        said = done.stdout + done.stderr
        assert done.returncode != 0 and "This plan needs " in said, said[-3000:]
        done = engine.run([form, "sh", "-c", "id -u; env; command -v gcc g++; cat /etc/passwd"], {})
        lines = engine.check(done).splitlines() if done.returncode == 0 else done.stdout.splitlines()
        assert lines[0] == "1000"
        for name, value in document["edits"]["environment"]:
            assert f"{name}={value}" in lines
        if document["compilers"]["train"]:
            assert any(line.startswith("/usr/bin/g") for line in lines)
    finally:
        engine.buildah("rmi", form)
