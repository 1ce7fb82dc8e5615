"""Terms of the cost model of serving beside published timings of engines' operators on real accelerators.

python benchmarks/served_operators.py FOLDER     prints tables, writes benchmarks/results/served_operators.json

FOLDER is where aiconfigurator-core 0.12.0 (Apache-2.0, with pyarrow and numpy) lies, as for published_operators.py: kernel latencies
of vLLM, SGLang and TensorRT-LLM. Three things are read off them: what a product of few rows takes beside reading its weights,
what attention of one new token takes beside reading the cache, and how long the engines' own all-reduce takes.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.published_operators import device_of  # noqa: E402
from generator.cost.comm import Group, compute_all_reduce_seconds, compute_served_all_reduce_seconds  # noqa: E402
from generator.cost.device import compute_rates  # noqa: E402
from generator.cost.execution import Execution  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "served_operators.json"
SYSTEMS = ("a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm")
ENGINES = ("vllm", "sglang", "trtllm")
WEIGHT_BYTES = {"bfloat16": 2.0, "fp8": 1.0, "int8_wo": 1.0, "int4_wo": 0.5 + 2 / 128, "nvfp4": 0.5 + 1 / 16}
LEAST_BYTES = 4e6
"""of weights: smaller ones lie in the caches"""
ROUNDS = 30
REPLAYED = {"vLLM_custom_graph", "SGLang_CustomAllReduce_graph", "TRTLLM"}
"""kernels of all-reduces within a replayed graph"""
FEW_BYTES = 4 << 20
"""of a decoding step's hidden states, up to 256 sequences of 8,192"""


def read_table(folder: Path, system: str, family: str, engine: str, name: str) -> list[dict]:
    import pyarrow.parquet as pq

    base = folder / "aiconfigurator_core" / "systems" / "data" / system / family / engine
    files = sorted(base.glob(f"*/{name}_perf.parquet"))
    return pq.read_table(files[-1]).to_pylist() if files else []


def fit_line(moved: list[float], seconds: list[float]) -> tuple[float, float]:
    """a and b of a + b x moved, by relative error, outliers weighted down."""
    import numpy as np

    x, y = np.array(moved), np.array(seconds)
    columns = np.stack([np.ones(len(x)), x], 1) / y[:, None]
    weights, solution = np.ones(len(x)), np.zeros(2)
    for _ in range(ROUNDS):
        solution, *_ = np.linalg.lstsq(columns * weights[:, None], weights, rcond=None)
        weights = 1 / np.sqrt(np.maximum(np.abs(columns @ solution - 1), 0.02))
    return float(solution[0]), float(solution[1])


def list_products(folder: Path, system: str) -> Iterator[dict]:
    """Products of one row by how their weights are stored: seconds beside reading them, share of the bandwidth."""
    for engine in ENGINES:
        rows = read_table(folder, system, "gemm", engine, "gemm")
        for dtype, size in WEIGHT_BYTES.items():
            chosen = [
                r for r in rows if r["gemm_dtype"] == dtype and r["m"] == 1 and r["n"] * r["k"] * size > LEAST_BYTES
            ]
            if len(chosen) < 20:
                continue
            start, slope = fit_line([r["n"] * r["k"] * size for r in chosen], [r["latency"] / 1e3 for r in chosen])
            share = 1 / slope / device_of(rows).memory_bytes_per_s
            yield {
                "term": "product of one row",
                "system": system,
                "engine": engine,
                "weights": dtype,
                "start_us": round(start * 1e6, 1),
                "share_of_bandwidth": round(share, 3),
            }


def list_attention(folder: Path, system: str) -> Iterator[dict]:
    """Attention of one new token: the least it takes, and the share of the bandwidth with more than 2 GB of cache."""
    for engine in ENGINES:
        rows = read_table(folder, system, "attention", engine, "generation_attention")
        rows = [
            r for r in rows if r["kv_cache_dtype"] == "bfloat16" and r["head_dim"] == 128 and not r.get("window_size")
        ]
        cached = [
            (4 * 128 * r["batch_size"] * (r["isl"] + r["step"]) * (r["num_key_value_heads"] or r["num_heads"]), r)
            for r in rows
        ]
        large = [size / (r["latency"] / 1e3) for size, r in cached if size > 2e9]
        if large:
            yield {
                "term": "attention of one new token",
                "system": system,
                "engine": engine,
                "least_us": round(min(r["latency"] for size, r in cached if size < 1e6) * 1e3, 1),
                "share_of_bandwidth": round(statistics.median(large) / device_of(rows).memory_bytes_per_s, 3),
            }


def list_all_reduces(folder: Path, system: str) -> Iterator[dict]:
    """Few bytes between the devices of a node, as the engine reduces them: the model's seconds, and a ring's, over those measured."""
    for engine in ENGINES:
        rows = read_table(folder, system, "comm", engine, "custom_allreduce")
        rows = [r for r in rows if r["kernel_source"] in REPLAYED]
        for ranks in (2, 4, 8):
            chosen = [r for r in rows if r["num_gpus"] == ranks and 2 * r["message_size"] <= FEW_BYTES]
            if not chosen:
                continue
            rates = compute_rates(device_of(rows), None, (), None)
            group = Group(Execution(tp=ranks), ranks)
            here, ring = (
                [compute(2.0 * r["message_size"], group, rates) / (r["latency"] / 1e3) for r in chosen]
                for compute in (compute_served_all_reduce_seconds, compute_all_reduce_seconds)
            )
            yield {
                "term": "all-reduce of a decoding step",
                "system": system,
                "engine": engine,
                "devices": ranks,
                "least_us": round(min(r["latency"] for r in chosen) * 1e3, 1),
                "predicted_over_measured": round(statistics.median(here), 3),
                "median_absolute_error": round(statistics.median(abs(x - 1) for x in here), 3),
                "ring_over_measured": round(statistics.median(ring), 3),
            }


def main() -> None:
    folder = Path(sys.argv[1])
    report = [
        row
        for system in SYSTEMS
        for list_rows in (list_products, list_attention, list_all_reduces)
        for row in list_rows(folder, system)
    ]
    for row in report:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    RESULTS.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
