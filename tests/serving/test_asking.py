"""infer.py and compare.py of a serving project."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import TypeAdapter
from serving_projects import ANSWERS, ASKING, BATCH, make_serving_project, make_tiny_model

from generator.run.figures import InferFigures

MODULES = BATCH | ANSWERS | ASKING | {"bench_texts": "serving/bench_texts"}


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("asking")
    return make_serving_project(folder / "p", make_tiny_model(folder / "m"), MODULES, threads=1)


def run(project: Path, *words: str) -> subprocess.CompletedProcess:
    quiet = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, timeout=400, env=quiet)


@pytest.mark.slow
def test_a_prompt_is_answered_and_measured(project):
    done = run(project, "infer.py", "--json", "--calls", "2", "--prompt", "one two", "--max_new_tokens", "5")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report == json.loads((project / "infer.json").read_text())
    figures = TypeAdapter(InferFigures).validate_python(report)
    assert figures.calls == 2 and 1 <= figures.new_tokens <= 5 and report["ttft_s"] <= figures.seconds
    assert figures.prompt_tokens == 3 + len("one two")  # marks of a turn, and a token for each letter
    raw = run(project, "infer.py", "--raw", "--prompt", "one two\x1b[2J", "--max_new_tokens", "5")
    report = json.loads((project / "infer.json").read_text())
    assert report["prompt_tokens"] == len("one two\x1b[2J") and report["answer"].startswith("one two\x1b[2J")
    assert raw.stdout.startswith("one two\\x1b[2J") and "\x1b" not in raw.stdout and "tokens/s" in raw.stdout
    long = run(project, "infer.py", "--prompt", "x" * 300)
    assert long.returncode == 1 and "has 303 tokens, and the plan has room for 256" in long.stderr
    assert "Traceback" not in long.stderr


@pytest.mark.slow
def test_a_template_that_takes_no_question_is_one_line(tmp_path):
    """It was a traceback, in which the terminal obeyed what the template says."""
    project = make_serving_project(tmp_path / "p", make_tiny_model(tmp_path / "m"), MODULES, threads=1)
    (tmp_path / "m" / "chat_template.jinja").write_text("{{ raise_exception('no\\x1b[31m\\nthanks') }}")
    done = run(project, "infer.py", "--prompt", "x")
    line = "the model's chat template does not take these messages: no\\x1b[31m thanks: --raw goes on with the prompt as it is"
    assert done.returncode == 1 and done.stderr.splitlines()[-1] == line and "Traceback" not in done.stderr


@pytest.mark.slow
def test_an_engine_that_says_something_else_is_found(project):
    asked = ("compare.py", "--prompts", "3", "--new_tokens", "24")
    done = run(project, *asked)
    assert done.returncode == 0, done.stderr
    report = json.loads((project / "compare.json").read_text())
    assert report["exact"] and report["equal_answers"] == 3 and report["equal_share"] == 1.0
    assert report["perplexity"] == pytest.approx(report["reference_perplexity"], rel=1e-4)
    assert abs(report["perplexity_change"]) < 1e-4 and "with this engine" in done.stdout
    assert report["next_token_agreement"] == 1.0 and report["reference_perplexity"] > 1 and not report["differences"]
    whole = (project / "model.py").read_text()
    spoilt = whole.replace("    return AutoModelForCausalLM", "    model = AutoModelForCausalLM")
    spoilt += "    model.model.layers[1].mlp.down_proj.weight.data *= -3\n    return model\n"
    try:
        (project / "model.py").write_text(spoilt)
        done = run(project, *asked)
    finally:
        (project / "model.py").write_text(whole)
    report = json.loads((project / "compare.json").read_text())
    assert done.returncode == 1 and "float32 is exact, and the answers differ" in done.stderr
    assert abs(report["perplexity_change"]) > 1e-4
    assert report["equal_answers"] < 3 and report["next_token_agreement"] < 1.0
    first = report["differences"][0]
    assert first["logits_apart"] > 0 and first["token"] != first["expected"]
