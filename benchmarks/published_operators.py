"""Terms of the cost model beside published timings of single operators on real accelerators.

python benchmarks/published_operators.py FOLDER     prints a table, writes benchmarks/results/published_operators.json

FOLDER is where `pip install --target FOLDER --no-deps aiconfigurator-core==0.12.0` (Apache-2.0, with pyarrow) put it: NVIDIA's
tables of kernel latencies, as vLLM 0.24 runs them. Its bfloat16 products are torch.nn.functional.linear; its attention is
FlashAttention-3 on Hopper, which scaled_dot_product_attention is not, so that is a bound and no measurement of ours.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from generator.cost import constants as c  # noqa: E402
from generator.cost.device import Rates, compute_rates  # noqa: E402
from generator.cost.time import compute_product_seconds  # noqa: E402
from hwdetect import catalog  # noqa: E402
from hwdetect.types import Device  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "published_operators.json"
SYSTEMS = ("h200_sxm", "h100_sxm", "a100_sxm", "l40s", "b200_sxm", "rtx_pro_6000_server")
TORCH_LINEAR = ("torch.nn.functional.linear", "vllm_default")
TOKENS = ((1, 1), (8, 8), (64, 128), (512, 1024), (2048, 2048), (4096, 4096), (8192, 8192), (16384, 40000))
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
LEAST_WIDTH = 1024
FILLS_DEVICE = 1 << 18
"""sequences x heads x length from which an attention kernel has work for every multiprocessor"""
LEAST_CACHE_BYTES = 256e6


def read_table(folder: Path, system: str, family: str, name: str) -> list[dict]:
    import pyarrow.parquet as pq

    base = folder / "aiconfigurator_core" / "systems" / "data" / system / family / "vllm"
    files = sorted(base.glob(f"*/{name}_perf.parquet"))
    return pq.read_table(files[-1]).to_pylist() if files else []


def device_of(rows: list[dict]) -> Device:
    known = catalog.match_text(rows[0]["device"])
    if known is None:
        raise LookupError(f"no device {rows[0]['device']!r} in the catalogue")
    return catalog.load(known)


def product_rows(rows: list[dict], device: Device, rates: Rates) -> Iterator[dict]:
    """bfloat16 products of at least ``LEAST_WIDTH`` inputs and outputs, by number of tokens: medians."""
    peak = dict(device.peak_flops)["bf16"]
    wide = [row for row in rows if row["gemm_dtype"] == "bfloat16" and row["kernel_source"] in TORCH_LINEAR]
    wide = [row for row in wide if min(row["n"], row["k"]) >= LEAST_WIDTH]
    for least, most in TOKENS:
        chosen = [row for row in wide if least <= row["m"] <= most]
        if not chosen:
            continue
        shares, ratios, summed = [], [], []
        for row in chosen:
            m, n, k, seconds = row["m"], row["n"], row["k"], row["latency"] / 1e3
            shares.append(2 * m * n * k / seconds / peak)
            ratios.append(compute_product_seconds(m, n, k, rates.products["bf16"], rates.bytes_per_s, 2.0) / seconds)
            arithmetic, moved = (
                2 * m * n * k / rates.products["bf16"],
                2.0 * (m * k + k * n + m * n) / rates.bytes_per_s,
            )
            summed.append((arithmetic + moved) / seconds)
        yield {
            "term": "bfloat16 product",
            "tokens": [least, most],
            "products": len(chosen),
            "measured_share_of_peak": statistics.median(shares),
            "predicted_share_of_peak": rates.products["bf16"] / peak,
            "predicted_over_measured_seconds": statistics.median(ratios),
            "median_absolute_error": median_error(ratios),
            "sum_over_measured_seconds": statistics.median(summed),
            "its_median_absolute_error": median_error(summed),
        }


def median_error(ratios: list[float]) -> float:
    return statistics.median(abs(ratio - 1) for ratio in ratios)


def attention_rows(rows: list[dict], device: Device, rates: Rates) -> Iterator[dict]:
    """Causal prefill, heads of 128, no window, nothing cached before: share of the 16-bit peak by length."""
    peak = dict(device.peak_flops)["bf16"]
    shares: dict[tuple, list[float]] = defaultdict(list)
    for row in rows:
        if not is_plain(row) or row["attn_dtype"] != "bfloat16" or row["step"] or row["isl"] not in LENGTHS:
            continue
        if row["batch_size"] * row["num_heads"] * row["isl"] < FILLS_DEVICE:
            continue
        work = 2.0 * row["batch_size"] * row["num_heads"] * row["isl"] ** 2 * row["head_dim"]
        shares[row["kernel_source"], row["isl"]].append(work / (row["latency"] / 1e3) / peak)
    for (kernel, length), values in sorted(shares.items()):
        yield {
            "term": "attention forward",
            "kernel": kernel,
            "length": length,
            "runs": len(values),
            "measured_share_of_peak": statistics.median(values),
            "predicted_share_of_peak": rates.flash(length, find_kernel(kernel))[0] / peak,
        }


def find_kernel(kernel: str) -> str:
    """vLLM's plain kernel is FlashAttention-2; FlashAttention-3's and TensorRT-LLM's are of their architecture."""
    return "flash2" if kernel in ("vllm_flash_attn", "vllm_flash_attn_fa2") else "flash3"


def cache_rows(rows: list[dict], device: Device) -> Iterator[dict]:
    """Decoding attention over a cache too large for L2: share of the data sheet's bandwidth at which it is read."""
    shares: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        size = 2 * 2.0 * row["batch_size"] * row["num_key_value_heads"] * row["head_dim"] * (row["step"] + row["isl"])
        if is_plain(row) and size >= LEAST_CACHE_BYTES:
            shares[row["kernel_source"]].append(size / (row["latency"] / 1e3) / device.memory_bytes_per_s)
    for kernel, values in shares.items():
        yield {
            "term": "reading the key-value cache",
            "kernel": kernel,
            "runs": len(values),
            "measured_share_of_bandwidth": statistics.median(values),
            "predicted_share_of_bandwidth": c.CACHE_REALISED * c.BANDWIDTH_REALISED,
        }


def is_plain(row: dict) -> bool:
    return row["kv_cache_dtype"] == "bfloat16" and row["head_dim"] == 128 and not row.get("window_size")


def rows_of(folder: Path, system: str) -> Iterator[dict]:
    gemm = read_table(folder, system, "gemm", "gemm")
    device = device_of(gemm)
    rates = compute_rates(device, None, (), None)
    prefill = read_table(folder, system, "attention", "context_attention")
    decode = read_table(folder, system, "attention", "generation_attention")
    for row in (
        *product_rows(gemm, device, rates),
        *attention_rows(prefill, device, rates),
        *cache_rows(decode, device),
    ):
        yield {"device": device.id, **{key: round(x, 4) if isinstance(x, float) else x for key, x in row.items()}}


def show(row: dict) -> str:
    where = row.get("tokens") or row.get("length") or ""
    pairs = [f"{key} {value:.3f}" for key, value in row.items() if isinstance(value, float)]
    return f"{row['device']:28} {row['term']:28} {where!s:16} {', '.join(pairs)}"


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    rows = [row for system in SYSTEMS for row in rows_of(Path(sys.argv[1]), system)]
    for row in rows:
        print(show(row))
    result = {
        "schema": 1,
        "what": "published latencies of single operators (medians over shapes) beside the terms of the cost model",
        "source": "https://pypi.org/project/aiconfigurator-core/0.12.0/",
        "command": "python benchmarks/published_operators.py FOLDER",
        "rows": rows,
    }
    RESULTS.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
