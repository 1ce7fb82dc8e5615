"""llama.cpp and MLX on people's own machines (benchmarks/local.csv), and on one that no constant of Metal has seen."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from benchmarks import local
from benchmarks.served import Figure, list_figures, read_runs
from benchmarks.validate import predict
from generator.cost import CostModel
from generator.cost.decode import compute_step
from generator.cost.execution import Execution
from generator.cost.prefill import compute_prefill_seconds
from generator.model import describe
from generator.model.catalog import find_catalog_model
from hwdetect.catalog import load

MEASURED = Path(__file__).resolve().parents[3] / "shared/measured/more/infer_llamacpp_gpu_bench.csv"


@pytest.fixture(scope="module")
def figures() -> list[Figure]:
    return list(list_figures(read_runs(local.TABLE), local.predict_seconds))


def runs_on_metal(row: dict[str, str], today: bool) -> bool:
    """By llama.cpp, with flash attention (``today``) or before it."""
    on_metal = row["framework"].startswith("llama.cpp") and row["device"].startswith(local.APPLE)
    return on_metal and (row["software_date"] >= "2025-09") is today


GROUPS = {
    "MLX": (lambda r: r["framework"].startswith("MLX"), 0.08, 0.35),
    "llama.cpp on Metal today": (lambda r: runs_on_metal(r, today=True), 0.08, 0.25),
    "llama.cpp on Metal before": (lambda r: runs_on_metal(r, today=False), 0.12, 0.32),
    "a Radeon": (lambda r: r["device"] == "rx-7900-xt", 0.12, 0.35),
    "GeForce of Turing and Blackwell": (lambda r: r["device"].startswith("rtx"), 0.16, 0.4),
}


@pytest.mark.parametrize("group", GROUPS)
def test_one_answer(figures, group):
    belongs, middle, worst = GROUPS[group]
    errors = [abs(f.ratio - 1) for f in figures if belongs(f.row)]
    assert len(errors) >= 20
    assert statistics.median(errors) <= middle
    assert max(errors) <= worst


@pytest.mark.skipif(not MEASURED.exists(), reason="the measured tables are not beside the repository")
def test_a_mac_that_no_constant_has_seen():
    pairs = [(t, p) for t, p in zip(*predict(MEASURED), strict=True) if t["device"] == "m2-ultra"]
    key = "tokens_per_s_per_gpu"
    errors = [abs(float(p[f"predicted_{key}"]) / float(t[key]) - 1) for t, p in pairs]
    assert len(errors) == 32
    assert statistics.median(errors) < 0.12
    assert max(errors) < 0.25


def test_matrix_units_shorten_prompts_alone():
    """Apple: 3.3 to 4.1 times as soon a first token on an M5 as on an M4, and tokens as the memory's rate goes."""
    spec = describe(dict(find_catalog_model("Qwen/Qwen3-8B").config), name="Qwen3-8B")
    plans = {name: CostModel(load(name), spec, device_memory_bytes=24 << 30) for name in ("m4", "m5")}
    run = Execution(mode="infer", engine="mlx", quant="int4", weights_dtype="bfloat16", seq_len=4096, new_tokens=2)
    prompts = {name: compute_prefill_seconds(plan.shape, run, plan.rates) for name, plan in plans.items()}
    assert 2.5 < prompts["m4"] / prompts["m5"] < 4.1
    steps = {name: compute_step(plan.shape, run, plan.rates, 4096) for name, plan in plans.items()}
    assert 1.1 < sum(steps["m4"]) / sum(steps["m5"]) < 1.3
