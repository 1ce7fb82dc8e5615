"""An engine's library in a process of its own: what it returns and raises, and how each of the two ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SERVING = Path(__file__).resolve().parents[2] / "templates" / "fragments" / "serving"
LIBRARY = """
import os, signal, time
from engine_process import answer_calls

class Odd(Exception):
    def __init__(self, one, two):
        super().__init__("odd")

class Library:
    def __init__(self, number):
        if number < 0:
            raise ValueError("no number")
        self.number = number
    def add(self, more):
        self.number += more
        return self.number
    def fail(self):
        raise Odd(1, 2)
    def find_process(self):
        return os.getpid()
    def end(self):
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    answer_calls(Library)
"""


@pytest.fixture
def project(tmp_path):
    for name in ("engine_process", "engine_thread", "sampling"):
        shutil.copy(SERVING / f"{name}.py", tmp_path)
    (tmp_path / "library.py").write_text(LIBRARY)
    return tmp_path


@pytest.fixture
def engine_process(load):
    load("serving/sampling", "sampling")
    load("serving/engine_thread", "engine_thread")
    return load("serving/engine_process", "engine_process")


def wait_until_gone(number: int) -> None:
    until = time.monotonic() + 30
    while Path(f"/proc/{number}").exists() and " Z" not in Path(f"/proc/{number}/stat").read_text():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_what_is_called_is_returned_or_raised(engine_process, project):
    library = engine_process.LibraryProcess(project / "library.py", 5)
    assert library.call("add", 2) == 7 and 0 < library.peak_gib < 1
    with pytest.raises(RuntimeError, match="Odd: odd"):
        library.call("fail")
    with pytest.raises(AttributeError):
        library.call("nothing")
    assert library.call("add", 1) == 8
    library.close()
    library.close()
    assert library.process.returncode == 0
    with pytest.raises(ValueError, match="no number"):
        engine_process.LibraryProcess(project / "library.py", -1)


def test_signals_for_all_of_a_service_do_not_end_it(engine_process, project):
    library = engine_process.LibraryProcess(project / "library.py", 5)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        library.process.send_signal(number)
    assert library.call("add", 1) == 6
    library.close()


def test_one_that_is_killed_is_said(engine_process, project):
    library = engine_process.LibraryProcess(project / "library.py", 5)
    for _ in range(2):
        with pytest.raises(engine_process.LibraryGone, match="-9"):
            library.call("end")
    library.close()


def test_it_ends_with_who_asked_it_however_that_ends(project):
    script = "from pathlib import Path; from engine_process import LibraryProcess; import os, time\n"
    script += "print(LibraryProcess(Path('library.py'), 5).call('find_process'), flush=True); time.sleep(60)"
    asking = subprocess.Popen([sys.executable, "-c", script], cwd=project, stdout=subprocess.PIPE, text=True)
    assert asking.stdout
    number = int(asking.stdout.readline())
    os.kill(number, 0)
    asking.kill()
    asking.wait()
    wait_until_gone(number)
