"""Values from outside cannot break out: they come back unchanged from every emitted file, or are refused at the door."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from generator import pipeline
from generator.case.request import Request
from generator.decide.notes import Note
from generator.emit import render
from generator.emit.document import build_document
from generator.emit.plan_json import to_json
from generator.errors import PerfgenError
from generator.inputs.data_files import DataSource
from generator.show.terminal import print_plan

SHARED = Path(__file__).resolve().parent.parent.parent / "shared" / "inputs" / "injection_strings.json"
MODELS = Path(__file__).resolve().parents[1] / "examples" / "models"
OURS = [
    "O'Brien",
    'say "hi"',
    "{{ 7*7 }}",
    "{% raw %}",
    "$(touch CANARY)",
    "`touch CANARY`",
    "a\nb: c",
    "</script>",
    "\u2028",
    "back\\",
]


def hostile() -> list[str]:
    return OURS + (json.loads(SHARED.read_text(encoding="utf-8")) if SHARED.is_file() else [])


@pytest.fixture(scope="module")
def planned():
    return pipeline.plan_request(Request(hardware="cpu:4", seq_len=64, global_batch=2))


def poisoned(planned, text: str, task_format: str = "jsonl"):
    """Every free-text answer is ``text``: model, tokenizer, data, columns, and the strings of the hardware."""
    plan = planned.plan
    case = replace(
        plan.case,
        model=replace(plan.case.model, name=text),
        device=replace(plan.case.device, name=text),
        hardware=replace(plan.case.hardware, cpu=replace(plan.case.hardware.cpu, model_name=text)),
    )
    data = DataSource(path=text, format=task_format, text_column=text, label_column=text)
    source = replace(planned.work.source, path=text, name=text, notes=(text,))
    request = replace(planned.work.request, model=text, tokenizer=text)
    work = replace(planned.work, data=data, source=source, request=request)
    return replace(planned, plan=replace(plan, case=case), work=work, notes=(Note(kind="model", text=text),))


class Text(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)


def check(planned, text: str, folder: Path) -> None:
    document = to_json(build_document(poisoned(planned, text), name="safe"))
    try:
        render.render(document, folder)
    except UnicodeEncodeError:
        assert any("\ud800" <= c <= "\udfff" for c in text), "only half a surrogate pair cannot be written"
        return
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    for key in ("model", "tokenizer", "data", "text_column"):
        assert config[key] == text, key
    assert json.loads((folder / "plan.json").read_text(encoding="utf-8"))["case"]["model"]["name"] == text
    assert (
        yaml.safe_load((folder / ".copier-answers.yml").read_text(encoding="utf-8"))["plan"]["config"]["model"] == text
    )
    tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    for path in folder.rglob("*.py"):
        compile(path.read_text(encoding="utf-8"), str(path), "exec")
    page = Text()
    page.feed((folder / "report.html").read_text(encoding="utf-8"))
    assert "script" not in page.tags and "img" not in page.tags


@pytest.mark.parametrize("text", hostile(), ids=ascii)
def test_rendered_values_come_back_unchanged(planned, text, tmp_path):
    check(planned, text, tmp_path)
    assert not list(tmp_path.rglob("CANARY"))


@settings(max_examples=25, deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40))
def test_any_text_comes_back_unchanged(tmp_path_factory, planned, text):
    check(planned, text, tmp_path_factory.mktemp("any"))


CLIPBOARD = "\x1b]52;c;eA==\x07\x9b31m\r"
"""Writes to the clipboard of many terminals, turns red, goes back to the beginning of the line."""


def test_a_terminal_shows_what_comes_from_outside_and_does_not_obey_it(planned, monkeypatch):
    """Names in a config.json, a hub's README, a file of hardware: on a terminal, in the plan and in an error."""
    from rich.console import Console

    out = io.StringIO()
    document = build_document(poisoned(planned, CLIPBOARD), name="safe")
    print_plan(document, Console(file=out, width=4000, color_system=None), every=True)
    error = PerfgenError(f"{CLIPBOARD} is no split", f"name one of\n{CLIPBOARD}")
    assert r"\x1b]52;c;eA==\x07\x9b31m\x0d" in out.getvalue()
    assert not {"\x1b", "\x07", "\x9b", "\r"} & set(out.getvalue() + str(error) + str(error.args) + str(error.hint))


needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="no make")
PROGRAM = """#!/bin/sh
printf '%s\\0' "$@" > words
env -0 > environment
"""


@pytest.fixture(scope="module")
def emitted(planned, tmp_path_factory):
    """A project in a folder whose name is hostile too, with a Python that writes down what reaches it."""
    folder = tmp_path_factory.mktemp("made") / "a $(touch CANARY) 'b' #c"
    folder.mkdir()
    render.render(to_json(build_document(planned, name="safe")), folder)
    stub = folder / "bin" / "python"
    stub.parent.mkdir()
    stub.write_text(PROGRAM)
    stub.chmod(0o755)
    return folder


def run_make(folder: Path, *words: str, **environment: str) -> tuple[list[str], dict[str, str]]:
    """The words and the variables that reach the program through make and the shell."""
    command = ["make", "--silent", "--old-file=setup", "BIN=bin", *words]
    clean = {name: value for name, value in os.environ.items() if name not in ("HF_TOKEN", "MAKEFLAGS", "PROMPT")}
    done = subprocess.run(command, cwd=folder, env=clean | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not list(folder.parent.rglob("CANARY"))
    variables = (folder / "environment").read_bytes().decode().split("\0")[:-1]
    return (folder / "words").read_bytes().decode().split("\0")[:-1], dict(line.split("=", 1) for line in variables)


def can_be_a_word(text: str) -> bool:
    """Of a command line: a NUL ends a word, half a surrogate pair is no UTF-8. make strips what stands before a value."""
    return "\0" not in text and not any("\ud800" <= c <= "\udfff" for c in text)


MAKE_STRINGS = [
    "$(shell touch CANARY)",
    "$H",
    "$$",
    "$(",
    "a#b",
    "a\\#b",
    "%",
    "$(error x)",
    "a\nb",
    "; touch CANARY",
    "",
]


@needs_make
@pytest.mark.parametrize("text", [*MAKE_STRINGS, *filter(can_be_a_word, hostile())], ids=ascii)
def test_a_prompt_reaches_the_program_as_it_is(emitted, text):
    """Given to make or in the environment: neither make nor the shell has a say."""
    expected = [f"--prompt={text.lstrip(BLANK)}"] if text.strip(BLANK) else []
    assert run_make(emitted, "infer", f"PROMPT={text}")[0] == ["infer.py", *expected]
    assert run_make(emitted, "infer", PROMPT=text.lstrip(BLANK))[0] == ["infer.py", *expected]


BLANK = " \t"


@needs_make
@pytest.mark.parametrize("target", ["train", "infer"])
def test_arguments_are_words_of_the_shell_and_make_leaves_them_alone(emitted, target):
    words, variables = run_make(
        emitted, target, "ARGS=--run_name 'a b $(shell touch CANARY)' --output_dir $HOME/x#y", HOME="/h"
    )
    assert words == [f"{target}.py", "--run_name", "a b $(shell touch CANARY)", "--output_dir", "/h/x#y"]
    assert not {"ARGS", "BIN", "PYTHON"} - set(os.environ) & variables.keys() - {"BIN"}  # BIN: given to make


@needs_make
@pytest.mark.parametrize("text", [*MAKE_STRINGS, *filter(can_be_a_word, hostile())], ids=ascii)
def test_values_of_the_env_file_are_taken_as_they_are(emitted, text):
    """make, the container's script and Slurm's read them by the same few lines of shell."""
    (emitted / ".env").write_text(f"# a comment\n\nHF_TOKEN={text}\nOTHER='x $y'\nnonsense", newline="")
    value = text.split("\n")[0].removesuffix("\r")
    for command in (["train"], ["infer"]):
        variables = run_make(emitted, *command)[1]
        assert variables["HF_TOKEN"] == value and variables["OTHER"] == "x $y" and "nonsense" not in variables
    assert run_make(emitted, "train", HF_TOKEN="mine")[1]["HF_TOKEN"] == "mine", "what is set already stays"
    (emitted / ".env").unlink()
    assert "OTHER" not in run_make(emitted, "train")[1]


@needs_make
def test_lines_of_the_env_file_may_end_as_windows_ends_them(emitted):
    (emitted / ".env").write_bytes(b'A_NAME="quoted"\r\nHF_TOKEN=end\r\n')
    variables = run_make(emitted, "infer")[1]
    (emitted / ".env").unlink()
    assert variables["HF_TOKEN"] == "end" and variables["A_NAME"] == "quoted"


@needs_make
def test_the_last_line_of_the_env_file_needs_no_end(emitted):
    (emitted / ".env").write_text('export A_NAME="quoted"\nHF_TOKEN=end')
    variables = run_make(emitted, "infer")[1]
    (emitted / ".env").unlink()
    assert variables["HF_TOKEN"] == "end" and variables["A_NAME"] == "quoted"


@needs_make
@pytest.mark.parametrize("shell", ["/bin/sh", "bash", "bash -euo pipefail"])
def test_a_line_of_the_env_file_that_sets_nothing_is_named_and_the_others_are_read(emitted, shell):
    """A name with a dash or a blank ended the shell (dash, `set -e`), as did UID, which bash keeps for itself; a byte order mark hid
    the first line."""
    lines = [
        "MY-NAME=1",
        "A B=2",
        "HF_TOKEN = hf_secret",
        "hf_secretsecret",
        "X[$(touch CANARY)]=3",
        "A+=4",
        "UID=4294967294",
    ]
    (emitted / ".env").write_text(
        "\ufeffFIRST=one\r\n  # a comment\n\n  INDENTED=two\n" + "\n".join([*lines, "LAST=three"])
    )
    script = '. ./env.sh; printf %s "$FIRST $INDENTED $LAST"'
    if shutil.which(shell.split()[0]) is None:
        pytest.skip(f"no {shell}")
    done = subprocess.run([*shell.split(), "-c", script], cwd=emitted, capture_output=True, text=True, check=False)
    (emitted / ".env").unlink()
    assert (done.returncode, done.stdout) == (0, "one two three"), done.stderr
    named = [f"line {number} of .env" in done.stderr for number in range(5, 11)]
    assert all(named) and "hf_secret" not in done.stderr and not list(emitted.parent.rglob("CANARY"))


@needs_make
def test_a_meeting_point_is_text_too(tmp_path):
    request = Request(
        hardware="2x8xa100-sxm4-80gb",
        model="x/y",
        config=str(MODELS / "llama-3.1-8b.json"),
        data="x/z",
        task="causal-lm",
        offline=True,
    )
    folder = tmp_path / "p"
    folder.mkdir()
    render.render(to_json(pipeline.document_request(request, "p")), folder)
    stub = folder / "bin" / "python"
    stub.parent.mkdir()
    stub.write_text(PROGRAM)
    stub.chmod(0o755)
    for address in ("node1", "$(shell touch CANARY)", "`touch CANARY`", "a b"):
        words, _ = run_make(folder, "train", f"MASTER_ADDR={address}")
        assert any(word.removesuffix(":29500") == address or word.startswith(f"{address}:") for word in words), words
        words, _ = run_make(folder, "train", MASTER_ADDR=address)
        assert any(word.startswith(address) for word in words)
    (folder / ".env").write_text("MASTER_ADDR=from-file\n")
    assert any(word.startswith("from-file") for word in run_make(folder, "train")[0])


def test_code_holds_no_value_from_outside(planned, tmp_path):
    """The same bytes of code whatever the names are: they stand in config.yaml alone."""
    trees = []
    for index, text in enumerate(["first", "'''second\"\"\""]):
        (tmp_path / str(index)).mkdir()
        render.render(to_json(build_document(poisoned(planned, text), name="safe")), tmp_path / str(index))
        trees.append(
            {p.relative_to(tmp_path / str(index)): p.read_bytes() for p in (tmp_path / str(index)).rglob("*.py")}
        )
    assert trees[0] == trees[1]


@pytest.mark.parametrize("text", hostile(), ids=ascii)
@pytest.mark.parametrize("option", ["model", "data", "hardware"])
def test_hostile_answers_are_taken_or_refused_with_a_reason(option, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    request = Request(**{"hardware": "cpu:4", "offline": True, "seq_len": 64} | {option: text})
    try:
        pipeline.plan_request(request)
    except PerfgenError as refused:
        assert refused.code in (2, 3, 4) and refused.message
    assert not (tmp_path / "CANARY").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["-rf", "{{ 7*7 }}", "$(touch CANARY)", "../../x", "a\nb", "x" * 5000, "--help", "\u202e"]
)
def test_the_command_line_refuses_in_words(text, tmp_path):
    command = [sys.executable, "-m", "generator.cli", "plan", f"--model={text}", "--offline"]
    root = str(Path(__file__).resolve().parent.parent)
    done = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": root, "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 4 and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
