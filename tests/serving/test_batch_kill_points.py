"""batch.py killed before each call that writes: the next start ends it, with the bytes of one piece and nothing beside."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from leaves import FRAGMENTS
from serving_projects import BATCH

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name == "nt", reason="signals as on Unix")]

WORK = """
class Work:
    FROM, READS, COLUMNS = ("prompt", "text"), (), {"answer": "string", "error": "string"}

    def __init__(self, *arguments): pass
    @staticmethod
    def add_arguments(*arguments): pass
    @staticmethod
    def read_batch(config): return 2
    @staticmethod
    def describe(*arguments): return {}
    def compute(self, rows):
        yield [(place, {"answer": row.values["prompt"][::-1], "error": None}) for place, row in enumerate(rows)]
    def close(self): pass
"""
STAND_IN = "class TextStreamer: pass\n"
"""for Transformers, of which batch.py itself needs a name"""
COUNTED = """
import os, signal, sys
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
NAMES = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree", "fcntl.lockf"}
count = 0

def watch(event, arguments):
    global count
    if event not in NAMES or (event != "fcntl.lockf" and not any(os.environ["OUTPUT"] in str(a) for a in arguments)):
        return
    if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & WRITES):
        return
    count += 1
    if count == int(os.environ["KILL_AT"]):
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(watch)
"""
MOST = 100


@pytest.fixture
def project(tmp_path) -> Path:
    folder = tmp_path / "p"
    folder.mkdir()
    for name, leaf in BATCH.items():
        shutil.copyfile(FRAGMENTS / f"{leaf}.py", folder / f"{name}.py")
    (folder / "batch_work.py").write_text(WORK)
    (folder / "transformers.py").write_text(STAND_IN)
    (folder / "sitecustomize.py").write_text(COUNTED)
    (folder / "config.yaml").write_text(yaml.safe_dump({"model": "m"}))
    rows = [{"id": number, "prompt": f"row {number}"} for number in range(7)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def run(project: Path, output: Path, kill_at: int) -> subprocess.CompletedProcess:
    env = os.environ | {"PYTHONPATH": str(project), "OUTPUT": output.name, "KILL_AT": str(kill_at)}
    command = [sys.executable, project / "batch.py", "--input", output.parent / "in.jsonl", "--output", output]
    return subprocess.run([*command, "--shard_rows", "3"], env=env, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_each_leaves_what_the_next_start_ends(project, tmp_path, form):
    whole = tmp_path / f"whole.{form}"
    assert run(project, whole, 0).returncode == 0
    for kill_at in range(1, MOST):
        output = tmp_path / f"killed-{kill_at}.{form}"
        ended = run(project, output, kill_at)
        if ended.returncode == 0:
            break
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        assert not output.exists() or output.read_bytes() == whole.read_bytes()
        again = run(project, output, 0)
        assert again.returncode == 0, again.stderr
        assert output.read_bytes() == whole.read_bytes()
        assert {path.name for path in tmp_path.glob(f"{output.name}*")} == {output.name, f"{output.name}.report.json"}
    assert 20 < kill_at < MOST - 1
