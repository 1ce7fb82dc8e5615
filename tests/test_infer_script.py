"""The rendered infer.py: which model it takes, and what an answer is made of."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from projects import render_small_project


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    return render_small_project(tmp_path_factory.mktemp("infer"))


@pytest.fixture(scope="module")
def script(project):
    sys.path.insert(0, str(project))
    try:
        spec = importlib.util.spec_from_file_location("rendered_infer", project / "infer.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(project))
        for leaf in ("infer_report", "machine", "terminal"):
            sys.modules.pop(leaf, None)
    return module


def finish_run(folder: Path, at: float) -> Path:
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    os.utime(folder / "run.json", (at, at))
    return folder


def test_a_run_is_found_where_it_was_written(project, script, monkeypatch, tmp_path):
    monkeypatch.setattr(script, "HERE", tmp_path)
    monkeypatch.setattr(script, "RUN", tmp_path / "runs")
    assert script.find_run() is None
    finish_run(tmp_path / "runs" / "smoke", 9)
    assert script.find_run() is None  # eight steps of a smoke run are no training
    older = finish_run(tmp_path / "second", 1)
    assert script.find_run() == older
    newer = finish_run(tmp_path / "sweeps" / "a", 2)
    assert script.find_run() == newer
    assert script.find_run() == newer and finish_run(tmp_path / "tries", 3) == script.find_run()
    (tmp_path / "runs" / "run.json").write_text("{}")
    os.utime(tmp_path / "runs" / "run.json", (0, 0))
    assert script.find_run() == tmp_path / "runs"  # as config.yaml says, whatever else there is


def ask(folder: Path, *words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "infer.py", "--max_new_tokens", "6", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)


def test_a_project_without_a_run_says_so(project):
    done = ask(project)
    assert done.returncode == 1 and "holds no finished run" in done.stderr and "--model FOLDER" in done.stderr


@pytest.mark.slow
def test_a_run_elsewhere_answers_in_json(project):
    trained = [sys.executable, "train.py", "--max_steps", "2", "--output_dir", "elsewhere"]
    subprocess.run(trained, cwd=project, capture_output=True, check=True, timeout=300)
    done = ask(project, "--json", "--prompt", "To be")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report == json.loads((project / "infer.json").read_text())
    assert report["answer"].startswith("To be") and report["calls"] == 1 and report["first_call_seconds"] > 0
    assert "elsewhere: the finished run" in done.stderr
    shown = ask(project, "--prompt", "To be", "--calls", "2").stdout
    assert shown.count("To be") == 1 and "tokens/s" in shown and "warming up took" in shown


def test_what_a_model_answers_is_shown_and_not_obeyed(script, capsys):
    """As it comes, and the line breaks stay."""

    class Letters:
        def decode(self, tokens, **_):
            return "".join(chr(token) for token in tokens)

    streamer = script.EscapedStreamer(Letters())
    for letter in "a\x1b]52;c;eA==\x07\nb\tc \x9b31m d":
        streamer.put(torch.tensor([ord(letter)]))
    streamer.end()
    assert capsys.readouterr().out == "a\\x1b]52;c;eA==\\x07\nb\tc \\x9b31m d\n"


@pytest.mark.parametrize("program", ["infer.py", "data.py"])
def test_a_typo_in_a_flag_is_one_line(project, program):
    done = subprocess.run(
        [sys.executable, program, "--promt", "x"], cwd=project, capture_output=True, text=True, check=False
    )
    advice = "did you mean --prompt?" if program == "infer.py" else "data.py --help lists them"
    assert (done.returncode, done.stderr) == (2, f"{program}: error: no such argument: --promt x; {advice}\n")
