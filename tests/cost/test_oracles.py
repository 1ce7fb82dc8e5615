"""The cost model against real training runs on a CPU: benchmarks/oracles.py measured them, the prediction is made anew here."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from benchmarks.oracles import make_execution
from generator.cost import CostModel
from hwdetect.types import Device
from tests.cost.models import spec

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks/results/cpu_runs.json"
FOUND = json.loads(RESULTS.read_text(encoding="utf-8"))


def compute_errors(row: dict) -> tuple[float, float]:
    """Of peak memory, and of time over the fastest step's: a shared machine only makes steps longer."""
    known, model = FOUND["machine"], row["sizes"]
    device = Device(
        id="cpu",
        vendor=known["vendor"],
        name=known["name"],
        kind="cpu",
        peak_flops=tuple((name, rate) for name, rate in known["peak_flops"].items()),
        memory_bytes_per_s=known["memory_bytes_per_s"],
        basis=known["basis"],
    )
    llama = spec("llama", **model)
    memory = known["memory_bytes"]
    cost = CostModel(device, llama, device_memory_bytes=memory, host_memory_bytes=memory, cpu_budget=known["cores"])
    estimate = cost.estimate(make_execution(known["cores"], **row["run"]))
    measured = row["measured"]
    return (
        estimate.peak_memory_gib * 2**30 / measured["peak_bytes"] - 1,
        estimate.step_seconds / measured["fastest_step_seconds"] - 1,
    )


def test_the_runs_cover_optimizers_and_checkpointing():
    assert len(FOUND["rows"]) >= 6
    assert {row["run"].get("optimizer", "adamw") for row in FOUND["rows"]} >= {"adamw", "adafactor", "sgd"}
    assert any(row["run"].get("checkpoint_every") for row in FOUND["rows"])


def test_peak_memory():
    absolute = [abs(compute_errors(row)[0]) for row in FOUND["rows"]]
    assert statistics.median(absolute) < 0.10
    assert max(absolute) < 0.20


def test_time_of_a_step():
    """With the rates that `perfgen detect --measure` absolute there."""
    absolute = [abs(compute_errors(row)[1]) for row in FOUND["rows"]]
    assert statistics.median(absolute) < 0.10


@pytest.mark.parametrize("field", ["hostname", "path", "user"])
def test_the_results_name_no_machine(field: str):
    assert field not in FOUND["machine"]
    assert "/home" not in RESULTS.read_text() and "/work" not in RESULTS.read_text()
