"""Does it answer here? `make smoke`."""

import json
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]


def test_answers(tmp_path):
    report = tmp_path / "infer.json"
    command = [sys.executable, "infer.py", "--report", str(report), "--max_new_tokens", "8"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(report.read_text())["answer"]
