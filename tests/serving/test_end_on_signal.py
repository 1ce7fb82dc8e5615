"""A job that is told to stop takes the processes of its engine with it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from leaves import FRAGMENTS

from generator.case.layout import ONE_DEVICE
from generator.emit.modules import list_serving_modules
from generator.emit.plan_document import ServerRecord
from generator.techniques.engines import list_engines

JOB = """
import signal

from end_on_signal import end_on_signal

if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup
    end_on_signal("run again")

import multiprocessing
import time


def compute(parent):
    signal.signal(signal.SIGTERM, lambda *_: exit())  # as an engine that puts its devices in order
    parent.send(True)  # a queue would send from a thread, which the signal may find holding its lock
    time.sleep(600)


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    waiting, parent = context.Pipe(duplex=False)
    child = context.Process(target=compute, args=(parent,), daemon=True)
    child.start()
    waiting.recv()
    print(child.pid, flush=True)
    waiting.recv()
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_processes_of_an_engine_end_with_the_job(signum, tmp_path):
    shutil.copyfile(FRAGMENTS / "serving" / "end_with_children.py", tmp_path / "end_on_signal.py")
    (tmp_path / "job.py").write_text(JOB, encoding="utf-8")
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "job.py"], cwd=tmp_path, stdout=pipe, stderr=pipe, text=True) as job:
        assert job.stdout and job.stderr
        child = int(job.stdout.readline())
        started = time.monotonic()
        job.send_signal(signum)
        try:
            said = job.communicate(timeout=20)[1]
        finally:
            job.kill()
        assert job.returncode == 128 + signum
    assert f"stopped by {signum.name}: run again" in said and "Traceback" not in said
    assert time.monotonic() - started < 10
    alive = is_alive(child)
    if alive:
        os.kill(child, signal.SIGKILL)
    assert not alive


def test_engines_with_processes_of_their_own_block_no_signal():
    engines = {engine.leaf: engine for engine in list_engines()}
    for path in (FRAGMENTS / "engines").glob("*.py"):
        text, leaf = path.read_text(encoding="utf-8"), path.stem
        server = ServerRecord(
            engine=leaf,
            leaf=leaf,
            command=(),
            conversion=None,
            limited_by="",
            frontier=(),
            proposals="",
            grace_seconds=1,
            cpus_per_task=None,
        )
        ends = list_serving_modules(server, engines[leaf], ONE_DEVICE)["end_on_signal"]
        starts = "LLM(" in text or "sglang.Engine(" in text
        assert starts == engines[leaf].starts_processes == (ends == "serving/end_with_children"), leaf
