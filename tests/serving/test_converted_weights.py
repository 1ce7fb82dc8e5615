"""Weights that an engine reads: whole or not there, whoever else writes, and however writing ends."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from leaves import FRAGMENTS

pytest.importorskip("huggingface_hub", reason="huggingface_hub, which convert.py fetches models with, is not installed")


@pytest.fixture
def project(tmp_path) -> Path:
    model = tmp_path / "model"
    model.mkdir()
    header = b'{"a":{}}'
    (model / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    serving = {"engine": "e", "weights": "int8", "converted": "weights"}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"model": str(model), "serving": serving}))
    return tmp_path


@pytest.fixture
def leaf(load, project, monkeypatch):
    load("sources")
    monkeypatch.setattr(load("config_file"), "FILE", project / "config.yaml")
    leaf = load("serving/converted_weights", "converted_weights")
    monkeypatch.setattr(leaf, "HERE", project)
    return leaf


def write_text(model: Path, folder: Path, weights: str) -> None:
    (folder / "w").write_text(weights)


def test_a_second_process_waits_and_finds_them_written(leaf, project, capsys):
    """Two wrote into one draft, and what the first called complete held files of the second, half written."""
    writing, go_on = threading.Event(), threading.Event()
    made = []

    def write_slowly(model, folder, weights):
        made.append(folder)
        writing.set()
        assert go_on.wait(20)
        write_text(model, folder, weights)

    threads = [threading.Thread(target=leaf.convert_weights, args=((), write_slowly, {})) for _ in range(2)]
    threads[0].start()
    assert writing.wait(20)
    threads[1].start()
    said = ""
    while "waiting for it" not in said:
        said += capsys.readouterr().out
        assert threads[1].is_alive()
        time.sleep(0.01)
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert len(made) == 1 and "already" in capsys.readouterr().out
    assert json.loads((project / "weights" / leaf.RECORD).read_text())["weights"] == "int8"
    assert sorted(path.name for path in project.glob("weights*")) == ["weights"]


def test_a_builder_that_outlives_its_starter_is_waited_for(project, tmp_path):
    """SIGKILL of convert.py leaves it, at work in the draft."""
    script = f"""
import subprocess, sys
sys.path[:0] = {[str(FRAGMENTS), str(FRAGMENTS / "serving")]!r}
from pathlib import Path
import config_file
import converted_weights as leaf
leaf.HERE = Path({str(project)!r})
config_file.FILE = leaf.HERE / "config.yaml"
def write(model, folder, weights):
    (folder / "w").touch()
    if len(sys.argv) > 1:
        wait = "touch started; i=0; until [ -e go ] || [ $i = 1200 ]; do sleep 0.05; i=$((i + 1)); done"
        subprocess.run(["sh", "-c", wait], close_fds=False, cwd={str(tmp_path)!r})
leaf.convert_weights((), write, {{}})
"""
    first = subprocess.Popen([sys.executable, "-c", script, "slow"], stdout=subprocess.PIPE)
    while not (tmp_path / "started").exists():
        assert first.poll() is None
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.wait()
    second = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert second.stdout and "waiting for it" in second.stdout.readline()
    (tmp_path / "go").touch()
    assert second.wait(60) == 0
    assert (project / "weights" / "w").exists()


@pytest.mark.parametrize(
    ("error", "free"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 1 << 40),
        (RuntimeError("basic_ios::clear: iostream error"), 4096),
        (SystemExit("the builder could not write"), 0),
        (RuntimeError("fwrite: No space left on device"), 1 << 40),
    ],
)
def test_a_full_disk_is_a_line_and_its_files_go(leaf, project, monkeypatch, error, free):
    def fill(model, folder, weights):
        write_text(model, folder, weights)
        raise error

    monkeypatch.setattr(leaf.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    with pytest.raises(
        SystemExit, match=r"the engine's weights were not written: .* is full: make room, and run again"
    ):
        leaf.convert_weights((), fill, {})
    assert not list(project.glob("weights*"))


@pytest.mark.parametrize(
    ("error", "limit"),
    [
        (OSError("141557760 requested and 5116 written"), 4),
        (SystemExit("the builder could not write"), 4),
        (SystemExit("the builder could not write: OSError: [Errno 27] File too large"), -1),
        (OSError(errno.EFBIG, os.strerror(errno.EFBIG)), -1),
    ],
)
def test_a_file_that_may_not_be_as_long_is_a_line(leaf, project, monkeypatch, error, limit):
    """NumPy's tofile() loses the system's number, and a builder in a process of its own says whatever it likes."""

    def fill(model, folder, weights):
        write_text(model, folder, weights)
        raise error

    monkeypatch.setattr(leaf.resource, "getrlimit", lambda kind: (limit, -1))
    with pytest.raises(SystemExit, match=r"takes no files of that length: raise the limit \(ulimit -f\), .* run again"):
        leaf.convert_weights((), fill, {})
    assert not list(project.glob("weights*"))


def test_a_folder_that_is_not_ours_is_a_line(leaf, project):
    def refuse(model, folder, weights):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder / "w"))

    with pytest.raises(
        SystemExit, match=r"weights.tmp/w cannot be written .Permission denied.: see whose it is, and run"
    ):
        leaf.convert_weights((), refuse, {})
    config = yaml.safe_load((project / "config.yaml").read_text())
    config["serving"]["converted"] = "config.yaml/weights"
    (project / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(SystemExit, match=r"config.yaml: File exists; name another folder as serving.converted"):
        leaf.convert_weights((), write_text, {})


@pytest.mark.parametrize(
    "error", [RuntimeError("an operator is not known"), SystemExit("cannot write"), KeyboardInterrupt()]
)
def test_other_failures_are_told_as_they_are(leaf, project, error):
    def fail(model, folder, weights):
        raise error

    with pytest.raises(type(error)) as raised:
        leaf.convert_weights((), fail, {})
    assert raised.value is error and not list(project.glob("weights*"))
