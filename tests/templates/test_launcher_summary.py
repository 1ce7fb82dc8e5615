"""What ended a process stands in torchrun's summary, which is printed last; what follows from the end of another does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from leaves import FRAGMENTS

TORCHRUN = Path(sys.executable).with_name("torchrun")
PROGRAM = """
import os, sys
from launcher_summary import tell_of_end
with tell_of_end():
    if os.environ["RANK"] == "1":
        {end}
    raise RuntimeError("[transport/tcp/pair.cc] Connection closed by peer [127.0.0.1]")
"""


@pytest.mark.parametrize(
    ("end", "told"),
    [
        ("sys.exit('set another seq_len: hf_abcdefghijklmnopqrst')", "traceback : set another seq_len: hf_***"),
        ("raise KeyError('lost')", "traceback : KeyError: 'lost'"),
    ],
)
def test_the_summary_says_what_ended_the_run(end, told, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM.format(end=end), encoding="utf-8")
    words = [TORCHRUN, "--standalone", "--local-addr=localhost", "--nproc-per-node", "2", "program.py"]
    environment = {**os.environ, "PYTHONPATH": str(FRAGMENTS), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    summary = done.stderr.rpartition("FAILED")[2]
    assert done.returncode and told in summary and "Connection closed" not in summary, done.stderr


def test_nothing_is_told_without_torchrun(load, monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    with pytest.raises(SystemExit, match="a reason"), load("launcher_summary").tell_of_end():
        sys.exit("a reason")
