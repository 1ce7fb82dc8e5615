"""Flags: plain ASCII numbers only, unknown flags suggested, exit code 2 and one line."""

import json
import sys

import click
import pytest
from click.testing import CliRunner

from generator.case.task_names import OTHER_NAMES
from generator.case.tasks import list_tasks
from generator.cli import main, perfgen
from generator.options import Count, Option, Positive


@pytest.mark.parametrize("text", ["0", "-1", "1e309", "NaN", "１２", "0x10", "1_000", "", "1" * 40, " 1", "+1", "1.0"])
def test_numbers_that_are_refused(text):
    with pytest.raises(click.BadParameter):
        Count(10**6).convert(text, None, None)


@pytest.mark.parametrize("text", ["0", "-1", "1e309", "nan", "inf", "１２", "0x10", "1_000", "", "1e", "--1"])
def test_rates_that_are_refused(text):
    with pytest.raises(click.BadParameter):
        Positive().convert(text, None, None)


@pytest.mark.parametrize(("text", "value"), [("2e-5", 2e-5), ("0.1", 0.1), (".5", 0.5), ("3", 3.0), ("1E-4", 1e-4)])
def test_rates_that_are_taken(text, value):
    assert Positive().convert(text, None, None) == value


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "--seq-len", "0"], "--seq-len"),
        (["plan", "--train", "qloar"], "--train"),
        (["plan", "--task", "DPO"], "--task sft learns what was chosen"),
        (["plan", "--task", "translation"], "--task sft trains a decoder on rows of input and target"),
        (["plan", "--task", "nonsense"], "not one of 'causal-lm'"),
        (["plan", "--sequence-len", "128"], "--sequence-len"),
        (["plan", "--pin", "precision"], "AXIS=NAME"),
        (["plan", "--json", "--answers"], "--json"),
        (["init"], "DEST"),
        (["nonsense"], "nonsense"),
    ],
)
def test_wrong_use_is_exit_2_and_names_the_flag(arguments, words):
    done = CliRunner().invoke(perfgen, arguments)
    assert done.exit_code == 2
    assert words in done.output and "Traceback" not in done.output


def test_a_task_has_no_other_name_too():
    assert not OTHER_NAMES.keys() & list_tasks().keys() and all(name == name.lower() for name in OTHER_NAMES)


def test_a_word_too_many_is_told_where_it_may_belong():
    for words in (["plan", "./my-model"], ["plan", "--hardware", "8x", "h100"]):
        done = CliRunner().invoke(perfgen, words)
        assert done.exit_code == 2 and "in quotes; a model is given by --model" in done.output


def test_a_typo_gets_a_suggestion():
    done = CliRunner().invoke(perfgen, ["plan", "--gobal-batch", "4"])
    assert "--global-batch" in done.output


def run_main(monkeypatch, capsys, *arguments: str) -> tuple[int, str, str]:
    """The program itself: exit code, output, errors."""
    monkeypatch.setattr(sys, "argv", ["perfgen", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, *capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["plan", "--json", "--offline", "--model", "nothing"], 4),
        (["plan", "--hardware", "1xnothing", "--json", "--sample"], 2),
        (["why", "nothing", "--json", "--hardware", "cpu:4"], 2),
        (["why-not", "nothing", "--json", "--hardware", "cpu:4"], 2),
        (["smoke", ".", "--json"], 4),
        (["init", "/", "--json", "--sample"], 5),
    ],
)
def test_an_error_of_a_command_that_was_asked_for_json_is_json(monkeypatch, capsys, tmp_path, arguments, code):
    monkeypatch.chdir(tmp_path)
    ended, out, err = run_main(monkeypatch, capsys, *arguments)
    assert ended == code and json.loads(out)["error"]["exit_code"] == code and err.startswith("perfgen: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["why", "--hardware", "cpu:4", "--", "--json"],
        ["plan", "--offline", "--model", "--json"],
        ["estimate", "--cases", __file__, "--out", "/no/such/folder/--json"],
    ],
)
def test_a_value_that_reads_like_the_flag_asks_for_no_json(monkeypatch, capsys, arguments):
    code, out, err = run_main(monkeypatch, capsys, *arguments)
    assert code and not out and err


def test_what_would_be_written_is_json_too(monkeypatch, capsys, tmp_path):
    words = ["init", str(tmp_path / "new"), "--sample", "--hardware", "cpu:4", "--global-batch", "4", "--json"]
    done = CliRunner().invoke(perfgen, [*words, "--dry-run"])
    answer = json.loads(done.stdout)
    assert not answer["written"] and "train.py" in answer["files"] and not (tmp_path / "new").exists()
    code, out, _ = run_main(monkeypatch, capsys, *words, "--diff")
    assert code == json.loads(out)["error"]["exit_code"] == 7


def test_what_is_forgotten_may_be_named_as_plans_name_it():
    option = Option()
    assert [option.convert(name, None, None) for name in ("seq-len", "--seq-len", "seq_len")] == ["seq_len"] * 3
    with pytest.raises(click.BadParameter, match="did you mean global-batch"):
        option.convert("globalbatch", None, None)
