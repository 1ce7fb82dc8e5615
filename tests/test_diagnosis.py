"""What a smoke run shows of a training that ended badly."""

from __future__ import annotations

from pathlib import Path

from generator.run.diagnosis import diagnose, list_own_lines
from generator.run.stage import Stage

ERROR = "[rank0]: RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one."
REPORT = """\
W1125 09:07:16.450000 15558 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 15685 closing signal SIGTERM
E1125 09:07:16.484000 15558 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 0 (pid: 15684)
Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "<frozen runpy>", line 88, in _run_code
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  rank      : 0 (local_rank: 0)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""
"""of torchrun (torch 2.13), recorded, with lines left out"""


def test_what_a_process_said_is_shown_and_not_its_launchers_report():
    """A crash in two processes showed twelve lines of torchrun's summary, without the error."""
    done = Stage(name="train", command=("python", "train.py"), output=f"{ERROR}\n{REPORT}", returncode=1, seconds=3.0)
    words, shown = diagnose(done, 60, Path("x"), 1.0)
    assert words == "train: crashed (exit 1)"
    assert shown.splitlines()[1:] == [ERROR]


def test_a_report_with_nothing_before_it_is_shown():
    assert list_own_lines("a\nb") == ["a", "b"]
    assert list_own_lines(REPORT) == REPORT.strip().splitlines()
