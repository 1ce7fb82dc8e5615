"""Does it train, resume and answer here? A few steps each: `make smoke`."""

import json
import math
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
QUICK = ("--logging_steps", "1", "--eval_strategy", "no", "--report_to", "none")
LAUNCHER = ("-m", "torch.distributed.run")
LAUNCH = (*LAUNCHER, "--standalone", "--local-addr=localhost", "--nproc-per-node", "8", "--shutdown-timeout", "600")


def run(*words: str) -> str:
    done = subprocess.run([sys.executable, *words], cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_trains_resumes_and_answers(tmp_path):
    folder = str(tmp_path / "smoke")  # by that name it is a trial, which infer.py does not take by itself

    run(*LAUNCH, "train.py", "--max_steps", "3", *QUICK, "--output_dir", folder)
    first = json.loads((tmp_path / "smoke" / "run.json").read_text())
    assert first["finished_step"] == 3
    assert len(first["losses"]) == 3
    assert all(math.isfinite(loss) for loss in first["losses"])

    run(*LAUNCH, "train.py", "--max_steps", "5", *QUICK, "--output_dir", folder)
    second = json.loads((tmp_path / "smoke" / "run.json").read_text())
    assert (second["resumed_from"], second["finished_step"]) == (3, 5)
    assert second["losses"][:3] == first["losses"]

    report = tmp_path / "infer.json"
    run("infer.py", "--run", folder, "--report", str(report), "--max_new_tokens", "8")
    assert json.loads(report.read_text())["answer"]
