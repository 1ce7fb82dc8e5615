"""`make zoo` in small: what trains, what a plan refuses, and what no model is made of are told apart."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl")
pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parent.parent


def test_small_models_are_trained_or_refused(tmp_path):
    words = [
        "--tasks",
        "sft",
        "--train",
        "lora",
        "--types",
        "doge",
        "mamba2",
        "zamba2",
        "--out",
        str(tmp_path / "z.json"),
    ]
    subprocess.run([sys.executable, "benchmarks/zoo.py", *words], cwd=ROOT, check=True, timeout=600)
    rows = json.loads((tmp_path / "z.json").read_text())["rows"]
    assert {row["type"]: row["outcome"] for row in rows} == {
        "doge": "trained",
        "mamba2": "refused",
        "zamba2": "no model",
    }
    assert all(row["why"] for row in rows if row["outcome"] != "trained")
