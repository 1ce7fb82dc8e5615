"""-q and -v: the result alone, or also what was read, from where and how long it took; progress never on standard output."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner, Result

from generator.cli import perfgen
from generator.progress import TALKING, echo_json

PLAN = ("plan", "--sample", "--offline", "--hardware", "cpu:4")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(perfgen, arguments, catch_exceptions=False)


@pytest.mark.parametrize("name", sorted(set(TALKING) & set(perfgen.commands)))
def test_every_command_that_works_has_both(name):
    text = run(name, "--help").output
    assert "-q, --quiet" in text and "-v, --verbose" in text


def test_other_commands_have_neither():
    for name in set(perfgen.commands) - set(TALKING):
        assert "--verbose" not in run(name, "--help").output


def test_a_quiet_plan_is_its_result():
    usual, quiet = run(*PLAN), run(*PLAN, "-q")
    assert usual.exit_code == quiet.exit_code == 0 and quiet.stderr == ""
    lines = quiet.stdout.splitlines()
    assert (
        len(lines) == 4 and lines[0].startswith("sample: ") and "optimizer=" in lines[1] and "batch 32 x 1" in lines[1]
    )
    assert lines[2] in usual.stdout and lines[3] in usual.stdout
    assert "note:" in usual.stdout and "note:" not in quiet.stdout


def test_a_verbose_plan_says_what_was_read_and_how_long_it_took():
    usual, verbose = run(*PLAN, "--json"), run(*PLAN, "--json", "-v")
    assert json.loads(verbose.stdout) == json.loads(usual.stdout) and usual.stderr == ""
    told = verbose.stderr
    for pattern in (
        r"^read the machine: \d+\.\d\d s$",
        r"^machine: 4-core x86_64 CPU; \d+ readings missing or assumed$",
        r"^model: .*config\.json, a config\.json alone, without weights, no tokenizer$",
        r"^data: .*text\.txt, txt, 1 rows; lengths: 4 bytes a token, assumed$",
        r"^decided: \d+\.\d\d s$",
        r"^perfgen plan, in all: \d+\.\d\d s$",
    ):
        assert re.search(pattern, told, re.MULTILINE), (pattern, told)


def test_detect_says_how_long_each_probe_took():
    usual, verbose, quiet = run("detect"), run("detect", "-v"), run("detect", "-q")
    assert re.search(r"^nvidia: (\d+\.\d\d s|given up), \d+ notes$", verbose.stderr, re.MULTILINE)
    assert usual.stderr == quiet.stderr == "" and "Not read" not in quiet.stdout


def test_a_quiet_init_says_what_was_written(tmp_path):
    arguments = ("init", str(tmp_path / "p"), "--sample", "--offline", "--hardware", "cpu:4")
    quiet = run(*arguments, "-q", "--no-smoke")
    assert quiet.exit_code == 0 and quiet.stderr == "" and re.search(r"wrote \d+ files to", quiet.stdout)
    assert "next:" not in quiet.stdout and "decision" not in quiet.stdout


def test_an_update_is_quiet_or_verbose_too(tmp_path):
    arguments = (str(tmp_path / "p"), "--sample", "--offline", "--hardware", "cpu:4", "--no-smoke")
    assert run("init", *arguments).exit_code == 0
    update, other = ("update", str(tmp_path / "p"), "--yes", "--no-smoke", "--offline"), ("--global-batch", "16")
    verbose = run(*update, *other, "-v", "--dry-run")
    for pattern in (
        r"^base of the merge: .*emitted\.zip, \d+ files$",
        r"^rendered: ",
        r"^merged: ",
        r"^perfgen update, in all: ",
    ):
        assert re.search(pattern, verbose.stderr, re.MULTILINE), (pattern, verbose.stderr)
    quiet_look = run(*update, *other, "-q", "--dry-run")
    assert (
        quiet_look.stdout == verbose.stdout
        and quiet_look.stderr == ""
        and re.search(r" config\.yaml .* updated", verbose.stdout)
    )
    quiet = run(*update, *other, "-q")
    assert quiet.stderr == "" and re.search(r"^changed \d+ files of", quiet.stdout, re.MULTILINE)
    assert "updated" not in quiet.stdout and "16" in quiet.stdout


def test_results_hold_no_number_that_json_does_not_have():
    with pytest.raises(ValueError, match="not JSON compliant"):
        echo_json({"seconds": float("nan")})


def test_both_are_one_too_many():
    done = run(*PLAN, "-q", "-v")
    assert done.exit_code == 2 and "give one of them" in done.stderr
