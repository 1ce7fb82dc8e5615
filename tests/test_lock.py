"""`make lock` and `perfgen init --lock`, by pip itself against an index and a registry on localhost."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from leaves import FRAGMENTS
from local_index import Places, serve_places

from generator import cli, pipeline
from generator.case import stacks
from generator.case.request import Request
from generator.errors import SourceError, UsageError
from generator.run.plan_file import read_document

MANIFEST = b'{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []}'
DIGEST = f"sha256:{hashlib.sha256(MANIFEST).hexdigest()}"
PYPROJECT = """
[project]
dependencies = ["alpha==1.0", "torch==2.13.0"]
optional-dependencies = {{ test = ["beta==2.0"] }}
[tool.uv]
index = [{{ name = "torch-cpu", url = "{url}/torch" }}]
"""


@pytest.fixture
def places():
    with serve_places() as local:
        local.tags["library/python", "3.11"] = MANIFEST
        yield local


def make_environment(places: Places) -> dict[str, str]:
    """That of a user whose pip knows one index, with a password."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    user = f"me:{places.password}@" if places.password else ""
    index = f"http://{user}{places.address}/simple"
    return kept | {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": index, "PIP_NO_INPUT": "1", "PIP_RETRIES": "0"}


@pytest.fixture
def project(places, tmp_path) -> Path:
    """A project of three packages and what one of them needs; torch has another file in the main index."""
    folder = tmp_path / "p"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PYPROJECT.format(url=places.url))
    image = f"{places.address}/library/python:3.11"
    (folder / "Dockerfile").write_text(f"# a\nFROM {image}\nRUN true\n")
    (folder / "plan.json").write_text('{\n  "schema": 1\n}\n')
    for leaf in ("lock.py", "lock_image.py"):
        shutil.copy(FRAGMENTS / leaf, folder)
    places.add("simple", "alpha", "1.0", "gamma>=1")
    places.add("simple", "beta", "2.0")
    places.add("simple", "gamma", "1.5")
    places.add("simple", "torch", "2.13.0", note="of CUDA")
    places.add("torch", "torch", "2.13.0+cpu")
    return folder


def run_lock(project: Path, places: Places, *words: str, script: str = "") -> subprocess.CompletedProcess:
    """By default what `make lock` runs where there is a Dockerfile; lock.py alone for what is about packages."""
    command = [sys.executable, script or ("lock.py" if words else "lock_image.py"), *words]
    return subprocess.run(
        command, cwd=project, env=make_environment(places), capture_output=True, text=True, check=False
    )


def install(project: Path, places: Places, target: Path) -> subprocess.CompletedProcess:
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--require-hashes",
        "-r",
        "requirements.lock",
        "--target",
        target,
    ]
    return subprocess.run(
        command, cwd=project, env=make_environment(places), capture_output=True, text=True, check=False
    )


def test_every_package_is_locked_by_hash_and_the_image_by_digest(project, places, tmp_path):
    done = run_lock(project, places)
    assert done.returncode == 0, done.stderr
    text = (project / "requirements.lock").read_text()
    assert [line.split(" ; ")[0] for line in text.splitlines() if "==" in line and " ; " in line] == [
        "alpha==1.0", "beta==2.0", "gamma==1.5", "torch==2.13.0+cpu"
    ]  # fmt: skip
    hashes = {hashlib.sha256(c).hexdigest() for index in places.indexes.values() for c in index.values()}
    of_cuda = hashlib.sha256(places.indexes["simple"]["torch-2.13.0-py3-none-any.whl"]).hexdigest()
    assert {word.removeprefix("--hash=sha256:") for word in text.split() if word.startswith("--hash")} == hashes - {
        of_cuda
    }
    assert f"FROM {places.address}/library/python:3.11@{DIGEST}\n" in (project / "Dockerfile").read_text()

    lock = json.loads((project / "plan.json").read_text())["lock"]
    assert lock["image"].endswith(DIGEST) and lock["requirements_sha256"] == hashlib.sha256(text.encode()).hexdigest()
    (packages,) = lock["packages"].values()
    assert packages == {"alpha": "1.0", "beta": "2.0", "gamma": "1.5", "torch": "2.13.0+cpu"}

    done = install(project, places, tmp_path / "installed")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "installed" / "torch.py").read_text() == "note = ''\n"
    assert run_lock(project, places, "--check").returncode == 0
    assert run_lock(project, places).returncode == 0 and (project / "requirements.lock").read_text() == text


def test_another_file_of_the_same_version_is_refused(project, places, tmp_path):
    assert run_lock(project, places).returncode == 0
    places.add("simple", "gamma", "1.5", note="of somebody else")
    done = install(project, places, tmp_path / "installed")
    assert done.returncode != 0 and "DO NOT MATCH THE HASHES" in done.stderr
    assert not (tmp_path / "installed" / "gamma.py").exists()


def test_an_engine_with_a_torch_of_its_own_is_locked_from_its_index(project, places):
    """No torch is asked for: the engine's wheel says which."""
    places.add("torch", "engine", "0.31.0+rocm723", "torch==2.13.0+cpu")
    text = (project / "pyproject.toml").read_text()
    (project / "pyproject.toml").write_text(text.replace("torch==2.13.0", "engine==0.31.0+rocm723"))
    done = run_lock(project, places, script="lock.py")
    assert done.returncode == 0, done.stderr
    lock = (project / "requirements.lock").read_text()
    assert "engine==0.31.0+rocm723 ;" in lock and "torch==2.13.0+cpu ;" in lock
    assert f"--extra-index-url {places.url}/torch" in lock


def test_a_lock_of_other_requirements_or_another_python_is_named(project, places):
    assert run_lock(project, places).returncode == 0
    text = (project / "requirements.lock").read_text()
    other = text.replace(f"python_version == '3.{sys.version_info.minor}'", "python_version == '3.99'")
    (project / "requirements.lock").write_text(other)
    done = run_lock(project, places, "--check")
    assert done.returncode == 1 and "has nothing for Python" in done.stderr

    assert run_lock(project, places, script="lock.py").returncode == 0  # beside those of the other Python
    both = (project / "requirements.lock").read_text()
    assert both.count("python_version == '3.99'") == 4 and both.count("--hash") == 8

    places.add("simple", "beta", "2.1")
    edited = (project / "pyproject.toml").read_text().replace("beta==2.0", "beta==2.1")
    (project / "pyproject.toml").write_text(edited)
    done = run_lock(project, places, "--check")
    assert done.returncode == 1 and "another pyproject.toml" in done.stderr
    assert run_lock(project, places).returncode == 0
    assert "3.99" not in (project / "requirements.lock").read_text()


def test_a_registry_without_tokens_or_without_the_header(project, places):
    places.token, places.sends_digest = None, False
    assert run_lock(project, places).returncode == 0
    assert f"@{DIGEST}\n" in (project / "Dockerfile").read_text()


def read_files(project: Path) -> dict[str, bytes]:
    """Beside what Python keeps of the scripts that it imports, where it may (``__pycache__``)."""
    return {path.name: path.read_bytes() for path in project.iterdir() if path.name != "__pycache__"}


@pytest.mark.parametrize("fault", ["tag", "package", "password"])
def test_what_cannot_be_locked_changes_nothing_and_shows_no_password(project, places, fault):
    before = read_files(project)
    places.password = "swordfish"
    password = places.password
    if fault == "tag":
        places.password = None
        places.tags.clear()
    elif fault == "package":
        del places.indexes["simple"]["gamma-1.5-py3-none-any.whl"]
    done = None
    if fault == "password":
        environment = make_environment(places)
        places.password = "another"
        command = [sys.executable, "lock_image.py"]
        done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    done = done or run_lock(project, places)
    assert done.returncode == 1 and "make lock" in done.stderr and "Traceback" not in done.stderr
    assert password not in done.stdout + done.stderr
    assert read_files(project) == before


# ---- perfgen init --lock


def write_locked(places: Places, folder: Path, monkeypatch, **more) -> Path:
    """`perfgen init --sample --lock --no-smoke`, the stack's index and image those of localhost."""
    tables = json.loads(json.dumps(stacks._read_tables()))
    for build in tables["train"]["builds"].values():
        build |= {"index": f"{places.url}/torch", "image": f"{places.address}/library/python:3.11"}
    monkeypatch.setattr(stacks, "_read_tables", lambda: tables)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    for name, value in make_environment(places).items():
        if name.startswith("PIP_"):
            monkeypatch.setenv(name, value)
    for name, version in tables["train"]["packages"].items():
        places.add("torch" if name == "torch" else "simple", name, version + ("+cpu" if name == "torch" else ""))
    given = {"hardware": "cpu:2", "seq_len": 64, "global_batch": 2}
    request = Request(**given, given=tuple(given), offline=True)
    pipeline.write_project(request, folder / "p", pipeline.InitOptions(smoke=False, yes=True, lock=True, **more))
    return folder / "p"


def test_a_new_project_is_locked(places, tmp_path, monkeypatch, capsys):
    project = write_locked(places, tmp_path, monkeypatch)
    waiting = capsys.readouterr().err
    assert "this may take minutes" in waiting  # pip's own words would be a page of them
    document = read_document(project)
    assert document.lock.image.endswith(f"@{DIGEST}")
    (packages,) = document.lock.packages.values()
    assert packages["torch"] == "2.13.0+cpu" and {"transformers", "pytest"} <= set(packages)
    assert f"@{DIGEST}\n" in (project / "Dockerfile").read_text()
    make = subprocess.run(["make", "-n", "setup"], cwd=project, capture_output=True, text=True, check=True)
    assert "--require-hashes" in make.stdout
    make = subprocess.run(["make", "-n", "lock"], cwd=project, capture_output=True, text=True, check=True)
    assert "this may take minutes" in make.stdout
    ignored = (project / ".dockerignore").read_text().split()
    assert "!requirements.lock" in ignored and yaml.safe_load((project / "config.yaml").read_text())


def change(project: Path, *words: str, command: str = "update") -> tuple[int, str]:
    """Exit code and output of an update, or of another command, of the project."""
    ends = ("--yes", "--no-smoke") if command == "update" else ()
    done = CliRunner().invoke(cli.perfgen, [command, str(project), *words, *ends])
    return getattr(done.exception, "code", done.exit_code), f"{done.output}{done.exception or ''}"


def test_an_update_keeps_what_is_locked_and_says_what_is_not(places, tmp_path, monkeypatch):
    project = write_locked(places, tmp_path, monkeypatch)
    locked = {path.name: path.read_bytes() for path in project.iterdir() if path.is_file()}
    code, output = change(project)
    assert code == 0 and "nothing to do" in output, "what `make lock` wrote is no edit of anybody"
    same = ("--sample", "--hardware", "cpu:2", "--seq-len", "64", "--global-batch", "2", "--offline")
    assert change(project, *same, "--diff", command="init")[0] == 0

    code, output = change(project, "--seq-len", "32")
    assert code == 0 and "lock" not in output, output
    assert json.loads((project / "plan.json").read_text())["lock"] == json.loads(locked["plan.json"])["lock"]
    assert (project / "Dockerfile").read_bytes() == locked["Dockerfile"]
    assert run_lock(project, places, "--check").returncode == 0

    code, output = change(project, "--seq-len", "64", "--report-to", "tensorboard")
    assert code == 0 and "requirements.lock is of other requirements" in output and "`make lock`" in output
    assert "lock" not in json.loads((project / "plan.json").read_text())
    assert f"@{DIGEST}\n" in (project / "Dockerfile").read_text(), "of the same image"
    assert run_lock(project, places, "--check").returncode == 1
    code, output = change(project, "--report-to", "none")
    assert code == 0 and {path.name: path.read_bytes() for path in project.iterdir() if path.is_file()} == {
        **locked,
        "plan.json": (project / "plan.json").read_bytes(),  # --report-to was given, and was not before
    }
    assert json.loads((project / "plan.json").read_text())["lock"] == json.loads(locked["plan.json"])["lock"]

    tables = stacks._read_tables()
    for build in tables["train"]["builds"].values():
        build["image"] = build["image"].replace("python:3.11", "python:3.12")
    code, output = change(project)
    assert code == 0 and "the base image is" in output and "3.12 now" in output
    assert "python:3.12\n" in (project / "Dockerfile").read_text()
    assert json.loads((project / "plan.json").read_text())["lock"]["image"] is None
    (project / "requirements.lock").unlink()
    code, output = change(project)
    assert code == 0 and "there is no requirements.lock" in output
    assert "lock" not in json.loads((project / "plan.json").read_text())


def test_nothing_is_written_where_locking_fails(places, tmp_path, monkeypatch):
    places.tags.clear()
    with pytest.raises(SourceError, match="nothing was written"):
        write_locked(places, tmp_path, monkeypatch)
    assert list(tmp_path.iterdir()) == []


def test_locking_is_no_part_of_a_dry_run(places, tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="--dry-run"):
        write_locked(places, tmp_path, monkeypatch, dry_run=True)


def test_a_disk_that_is_full_leaves_every_file_as_it_was(load, tmp_path, monkeypatch):
    """plan.json, and a Dockerfile with its owner's lines, were cut to nothing first."""
    lock = load("lock")
    image = load("lock_image")
    names = {"LOCK": "requirements.lock", "PLAN": "plan.json", "DOCKERFILE": "Dockerfile"}
    for name, file in names.items():
        (tmp_path / file).write_text('{"schema": 1}' if name == "PLAN" else "FROM python:3.11\n")
        (tmp_path / file).chmod(0o640)
        monkeypatch.setattr(image if name == "DOCKERFILE" else lock, name, tmp_path / file)
    monkeypatch.setattr(lock, "read_wanted", lambda: (["alpha==1.0"], None))
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    writes = (lambda: lock.write_lock([]), lock.record, lambda: image.write_base("python:3.11@sha256:0"))
    for write in writes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        try:
            with pytest.raises(SystemExit, match=r"cannot be written .*, and is as it was"):
                write()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before
    for write in writes:
        write()
    after = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert after.keys() == before.keys() and not after.items() & before.items()
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o640}
    (tmp_path / "plan.json").write_text("")
    with pytest.raises(SystemExit, match=r"plan\.json is no JSON"):
        lock.record()
