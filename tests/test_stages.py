"""What a stage of a pipeline holds: as much for many micro-batches as for few."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("stage_processes.py")


def run_stages(folder: Path, count: int) -> list[dict]:
    subprocess.run([sys.executable, str(SCRIPT), str(folder), str(count)], check=True, timeout=120)
    return [json.loads((folder / f"{count}-{rank}.json").read_text()) for rank in (0, 1)]


def test_memory_of_a_stage_does_not_grow_with_the_micro_batches(tmp_path):
    """PyTorch 2.13's PipelineStage receives each in a place of its own, and keeps the logits of all in an evaluation."""
    few, many = run_stages(tmp_path, 4), run_stages(tmp_path, 16)
    assert all(stage["equal"] for stage in (*few, *many))
    assert many == few
