"""Ctrl-C while a program still imports: the status of an interrupted program, and not a word."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from projects import render_small_project

ROOT = Path(__file__).resolve().parents[1]
posix = pytest.mark.skipif(os.name == "nt", reason="signals as on Unix")
SLOW_MODULE = "import pathlib, time\npathlib.Path({sign!r}).touch()\ntime.sleep(60)\n"
INTERRUPTED = (-signal.SIGINT, 130)
"""a shell shows both as 130"""


def interrupt_imports(command: list[str], folder: Path, module: str, beside: Path) -> tuple[int, str]:
    """Ctrl-C once ``module``, which takes its time, is being imported."""
    sign = folder / "importing"
    (beside / f"{module}.py").write_text(SLOW_MODULE.format(sign=str(sign)))
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(beside), str(ROOT)])}
    process = subprocess.Popen(
        command, cwd=folder, env=env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, preexec_fn=listen
    )
    ends = time.monotonic() + 60
    while not sign.exists():
        assert process.poll() is None and time.monotonic() < ends
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=60)[1]
    return process.returncode, errors


def listen() -> None:
    """A shell's background job starts with SIGINT ignored, and tests may run in one."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@posix
@pytest.mark.parametrize("program", ["train.py", "infer.py", "data.py"])
def test_ctrl_c_while_a_project_imports_is_no_traceback(tmp_path, program):
    folder = render_small_project(tmp_path / "s")
    (tmp_path / "beside").mkdir()
    code, errors = interrupt_imports([sys.executable, program], folder, "torch", tmp_path / "beside")
    assert code in INTERRUPTED and errors == ""


@posix
def test_ctrl_c_while_perfgen_imports_is_no_traceback(tmp_path):
    (tmp_path / "beside").mkdir()
    command = [sys.executable, "-P", "-c", "from generator.start import main; main()", "devices"]
    code, errors = interrupt_imports(command, tmp_path, "click", tmp_path / "beside")
    assert code in INTERRUPTED and errors == ""


@posix
def test_ctrl_c_later_is_said(tmp_path):
    """What a command imports for itself."""
    (tmp_path / "beside").mkdir()
    command = [sys.executable, "-P", "-c", "from generator.start import main; main()", "plan", "--sample", "--offline"]
    code, errors = interrupt_imports(command, tmp_path, "rich", tmp_path / "beside")
    assert (code, errors.strip()) == (130, "interrupted")


@posix
@pytest.mark.parametrize(("ignored", "code"), [(False, 129), (True, 0)])
def test_a_terminal_that_is_closed_ends_it_in_order(tmp_path, ignored, code):
    """A kill by SIGHUP left the draft of `init` beside DEST; under nohup it goes on."""
    script = "import os, signal, time, click; from generator import cli\n"
    script += (
        f"signal.signal(signal.SIGHUP, signal.{'SIG_IGN' if ignored else 'SIG_DFL'})\n"  # these may run under nohup
    )
    script += "@cli.perfgen.command()\ndef hang():\n  try: os.kill(os.getpid(), signal.SIGHUP); time.sleep(0.1)\n"
    script += "  finally: print('tidied')\n"
    command = [sys.executable, "-P", "-c", f"{script}cli.main()", "hang"]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True)
    assert (done.returncode, done.stdout.split()) == (code, [b"tidied"]), done.stderr


@posix
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("words", "code"), [("detect", 0), ("devices h100", 0), ("init new", 2), ("update .", 5)])
def test_a_closed_stream_is_no_traceback(tmp_path, words, code, closed):
    """`init` asked whether None was a terminal."""
    program = f"{sys.executable} -P -c 'from generator.start import main; main()'"
    done = subprocess.run(["sh", "-c", f"{program} {words} {closed}"], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == code, done.stderr
    assert b"Traceback" not in done.stderr
