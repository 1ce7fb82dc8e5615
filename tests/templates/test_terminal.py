"""Flags of the emitted scripts: what is wrong is said in one line, with what may have been meant."""

from __future__ import annotations

import argparse
import sys

import pytest

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
