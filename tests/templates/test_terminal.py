"""Flags of the emitted scripts: what is wrong is said in one line, with what may have been meant."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from leaves import FRAGMENTS

pytest.importorskip("transformers")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--inptu", "a"], "job: error: no such argument: --inptu a; did you mean --input?"),
        (["--input", "a", "--verbose"], "job: error: no such argument: --verbose; job --help lists them"),
        (["--rows", "3"], "job: error: --input must be given"),
    ],
)
def test_a_flag_that_is_wrong_or_missing_is_one_line(load, monkeypatch, capsys, words, said):
    terminal = load("terminal")
    monkeypatch.setattr(terminal, "open_streams", lambda: None)  # those of pytest stay
    monkeypatch.setattr(sys, "argv", ["job", *words])
    parser = argparse.ArgumentParser()
    parser.add_argument("--input", required=True)
    parser.add_argument("--rows", type=int)
    with pytest.raises(SystemExit) as ended:
        terminal.parse_flags(parser)
    assert ended.value.code == 2 and capsys.readouterr().err == f"{said}\n"


UNREAD = """
import os, sys
sys.path.insert(0, sys.argv[1])
import terminal
terminal.keep_streams()
reader, writer = os.pipe()
os.close(reader)
os.dup2(writer, 2)
for line in range(3000):
    print("a line", line, flush=line % 2 == 0)
    print("another", file=sys.stderr)
open(sys.argv[2], "w").write("done")
"""


def test_lines_that_nobody_takes_are_no_error(tmp_path):
    """A full disk, and a reader that has ended: Python's own streams raise at every line, and again at the end."""
    done = tmp_path / "done"
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run([sys.executable, "-c", UNREAD, FRAGMENTS, done], stdout=full, check=False, timeout=300)
    assert done.read_text() == "done" and ended.returncode == 0


WAITING = """
import sys
import threading
sys.path.insert(0, sys.argv[1])
import terminal
terminal.open_streams()
terminal.keep_streams()
print("to standard output")
print("to standard error", file=sys.stderr)
sys.stdin.readline()
"""


def test_lines_come_as_they_are_printed_where_python_buffers_none(tmp_path):
    """PYTHONUNBUFFERED=1, as containers have it: a server that was ready kept the line that says so, until it ended."""
    waiting = subprocess.Popen(
        [sys.executable, "-c", WAITING, FRAGMENTS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    ender = threading.Timer(120, waiting.kill)  # else what was kept would be waited for for ever
    ender.start()
    try:
        assert waiting.stdout.readline() == "to standard output\n"
        assert "to standard error\n" in iter(waiting.stderr.readline, "")
        assert waiting.poll() is None
    finally:
        ender.cancel()
        waiting.kill()
        waiting.communicate()
