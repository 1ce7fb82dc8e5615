"""What a training has made, served: the README's own line makes a project whose answers are infer.py's."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from serving_projects import make_tiny_model

FLAGS = ("--hardware", "cpu:2", "--no-smoke", "--yes")
TRAIN = ("--max_steps", "3", "--report_to", "none", "--eval_strategy", "no")
ASK = ("--prompt", "Say 5 please", "--max_new_tokens", "12", "--json")


def run(folder: Path, *words: str) -> str:
    done = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("train", ["full", "lora"])
def test_the_trained_model_is_served_by_the_line_of_the_readme(train, tmp_path):
    model = make_tiny_model(tmp_path / "m")
    turns = ((f"Say {n} please", f"Here it is: {n}") for n in range(32))
    rows = [[{"role": "user", "content": ask}, {"role": "assistant", "content": say}] for ask, say in turns]
    (tmp_path / "chat.jsonl").write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    made = ("--model", str(model), "--data", str(tmp_path / "chat.jsonl"), "--task", "sft", "--train", train)
    run(tmp_path, "-m", "generator.cli", "init", "p", *made, "--seq-len", "128", "--global-batch", "4", *FLAGS)
    project = tmp_path / "p"
    run(project, "train.py", *TRAIN)
    readme = (project / "README.md").read_text()
    (line,) = (line for line in readme.splitlines() if "--mode infer --model runs" in line)
    *before, command = line.partition("#")[0].split("&&")
    assert [each.strip() for each in before] == (["python merge.py"] if train == "lora" else [])
    if before:
        run(project, "merge.py")
    words = shlex.split(command)
    assert words[:3] == ["perfgen", "init", "../p-server"]
    run(project, "-m", "generator.cli", *words[1:], "--pin", "engine=transformers", *FLAGS)
    served = json.loads(run(tmp_path / "p-server", "infer.py", *ASK))
    run_folder = words[words.index("--model") + 1]
    asked = json.loads(run(project, "infer.py", "--model", run_folder, *ASK))
    assert served["answer"] == asked["answer"] and served["new_tokens"] == asked["new_tokens"]
    stops = json.loads((project / run_folder / "generation_config.json").read_text())["eos_token_id"]
    assert 0 in (stops if isinstance(stops, list) else [stops])  # <|end|>, which ends each turn of the template
