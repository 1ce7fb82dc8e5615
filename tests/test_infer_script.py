"""The rendered infer.py: which model it takes, and what an answer is made of."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from projects import render_small_project


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    return render_small_project(tmp_path_factory.mktemp("infer"))


def ask(folder: Path, *words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "infer.py", "--max_new_tokens", "6", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)


def test_a_project_without_a_run_says_so(project):
    done = ask(project)
    assert done.returncode == 1 and "holds no finished run: train.py first" in done.stderr
    assert done.stderr.rstrip().endswith("say which with --run") and "Traceback" not in done.stderr


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


def test_what_a_model_answers_is_shown_and_not_obeyed(load, capsys):
    """As it comes, and the line breaks stay."""

    class Letters:
        def decode(self, tokens, **_):
            return "".join(chr(token) for token in tokens)

    streamer = load("terminal").EscapedStreamer(Letters())
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
    assert done.returncode == 2 and "Traceback" not in done.stderr
    # torchao, where it is installed, says what of it cannot be loaded
    assert done.stderr.splitlines()[-1] == f"{program}: error: no such argument: --promt x; {advice}"
