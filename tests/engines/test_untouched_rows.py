"""Rows of keys and values for the longest answers take no memory before they are written to."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
from pathlib import Path
from engine import allocate_untouched
rows = allocate_untouched((4, 8, 8192, 64))  # 64 MiB, 2 for each head of a row
def read(): return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
before = read()
rows[:, :, 0] = 1
assert float(rows[3, 7, 0].sum()) == 64
print(read() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_first_token_takes_a_page_of_each_head_and_not_two_megabytes(tmp_path):
    shutil.copy(ROOT / "templates/fragments/engines/onnxruntime_genai.py", tmp_path / "engine.py")
    for name in ("onnxruntime", "prompts", "scheduler"):
        (tmp_path / f"{name}.py").write_text("Prompts = Scheduler = object\n")

    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 8 * 2**20
