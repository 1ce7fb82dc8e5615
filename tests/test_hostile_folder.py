"""A working folder full of files with the names of modules: none of perfgen's commands, and none of their children, runs one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from projects import ANSWERED, TRAINED, render_small_project

from generator.run import smoke

ROOT = Path(__file__).resolve().parents[1]
MODULES = (
    *("torch", "transformers", "numpy", "json", "random", "os", "site", "sitecustomize", "usercustomize", "typing"),
    *("hwdetect", "generator", "pynvml", "psutil", "importlib", "tempfile", "accelerate", "safetensors"),
    *("huggingface_hub",),
    *("copier", "yaml", "click", "rich", "jinja2", "ctypes", "select", "signal", "socket", "subprocess", "encodings"),
)
TOOLS = ("nvidia-smi", "rocm-smi", "lspci", "python", "python3", "git", "sh", "ps", "env")
HOSTILE = "import pathlib\npathlib.Path({canary!r}).touch()\nraise SystemExit(77)\n"
CONFIG = {"model_type": "cwm", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2} | {
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 300,
}


@pytest.fixture
def hostile(tmp_path) -> Path:
    """The working folder; whoever runs one of its files leaves ``CANARY`` beside it."""
    folder, text = tmp_path / "hostile", HOSTILE.format(canary=str(tmp_path / "CANARY"))
    folder.mkdir()
    for name in MODULES:
        (folder / f"{name}.py").write_text(text)
    for name in ("transformers", "torch"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(text)
    for name in TOOLS:
        (folder / name).write_text(f"#!/bin/sh\n: > {tmp_path}/CANARY\n")
        (folder / name).chmod(0o755)
    return folder


def perfgen(folder: Path, *words: object, **environment: str) -> subprocess.CompletedProcess:
    """A command as the installed program runs it: of its own folder, whatever the working folder is."""
    command = [sys.executable, "-P", "-c", "from generator.start import main; main()", *map(str, words)]
    env = os.environ | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder.parent / "cache")} | environment
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=500)


def check_untouched(hostile: Path) -> None:
    assert not (hostile.parent / "CANARY").exists()
    assert not list(hostile.rglob("*.pyc"))


@pytest.mark.parametrize(
    "words",
    [
        ("detect", "--json"),
        ("devices", "h100"),
        ("techniques",),
        ("plan", "--sample", "--offline"),
        ("why", "precision", "--hardware", "cpu:2"),
        ("why-not", "bf16", "--hardware", "cpu:2"),
        ("init", "new", "--sample", "--offline", "--hardware", "cpu:2", "--no-smoke"),
        ("init", "new", "--sample", "--offline", "--hardware", "cpu:2", "--diff"),
        pytest.param(("detect", "--measure"), marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_no_file_of_the_working_folder_runs(hostile, words):
    path = os.pathsep.join([".", "", os.environ["PATH"]])  # as careless users have it
    done = perfgen(hostile, *words, PATH=path)
    assert done.returncode == (7 if "--diff" in words else 0), done.stderr
    check_untouched(hostile)


@pytest.mark.slow
def test_a_count_on_the_meta_device_runs_no_file_of_the_working_folder(hostile):
    """A type that no table knows: Transformers is asked, in a child."""
    (hostile / "config.json").write_text(json.dumps(CONFIG))
    done = perfgen(hostile, "plan", "--model", "config.json", "--hardware", "cpu:2", "--offline")
    assert list((hostile.parent / "cache" / "perfgen").iterdir()), done.stderr
    check_untouched(hostile)


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    return render_small_project(tmp_path_factory.mktemp("made"))


def test_what_an_interpreter_lacks_is_looked_up_beside_no_user_s_file(project, hostile, monkeypatch):
    monkeypatch.chdir(hostile)
    for path in ("", ":", ".", f":{ROOT}"):
        monkeypatch.setenv("PYTHONPATH", path)
        assert smoke.find_missing_modules(sys.executable, project) == []
    check_untouched(hostile)


@pytest.mark.slow
def test_a_smoke_run_runs_the_project_and_nothing_of_the_working_folder(project, hostile):
    """The project's own folder is its program; where the command was given is not."""
    folder = shutil.copytree(project, hostile.parent / "p")
    (folder / "train.py").write_text(TRAINED)
    (folder / "infer.py").write_text(ANSWERED)
    done = perfgen(hostile, "smoke", folder, "--python", sys.executable)
    assert done.returncode == 0, done.stderr
    check_untouched(hostile)


@pytest.mark.parametrize("entry", ["", "."])
def test_a_relative_entry_of_pythonpath_does_not_run_the_working_folder_s_files(tmp_path, entry):
    """What Python itself imports before perfgen begins is left out: no program can help that."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in ("json", "dataclasses", "signal", "typing", "click", "yaml", "hwdetect", "tempfile", "random"):
        (folder / f"{name}.py").write_text(HOSTILE.format(canary=str(tmp_path / "CANARY")))
    done = perfgen(folder, "devices", "h100", PYTHONPATH=os.pathsep.join([entry, str(ROOT)]))
    assert done.returncode == 0, done.stderr
    check_untouched(folder)
