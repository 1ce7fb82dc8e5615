"""Values from outside cannot break out: they come back unchanged from every emitted file, or are refused at the door."""

from __future__ import annotations

import io
import json
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


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
@pytest.mark.parametrize(
    "prompt", ['say "hi"', "O'Brien", "`touch CANARY`", "a; touch CANARY", "back\\", "$$(touch CANARY)", "-rf"]
)
def test_a_prompt_reaches_the_program_as_it_is(planned, prompt, tmp_path):
    """Make doubles its dollars; the shell has no say in the rest."""
    render.render(to_json(build_document(planned, name="safe")), tmp_path)
    stub = tmp_path / "bin" / "python"
    stub.parent.mkdir()
    stub.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\" > words\n")
    stub.chmod(0o755)
    words = ["make", "--silent", "--old-file=setup", "infer", "BIN=bin", f"PROMPT={prompt}"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "words").read_text().endswith(f"--prompt={prompt.replace('$$', '$')}\n")
    assert not (tmp_path / "CANARY").exists()


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
        assert refused.code in (2, 4) and refused.message
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
