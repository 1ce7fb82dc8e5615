"""Fit the named constants of the cost model to published runs, and print how well they hold on what was left out.

usage: python benchmarks/fit.py MEASURED_DIR [--served] [--rounds N] [--leave-out model|device|table [--least N]]

``--served`` fits what generation alone reads, on tables of generation, and leaves the others as they are.

Coordinate descent on the logarithm of each constant; the loss is the mean over tables of the mean absolute log error of
the speed (capped, so that a wrongly stated row does not steer). Nothing is written: put the printed values into
generator/cost/constants.py; one that is stopped by a bound is marked. No constant belongs to a model, a device or a row.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from generator.cost import constants, engines
from generator.cost.constants import Constant
from generator.estimate.table import TableRow, Uncostable, estimate_row, read_row

Name = str | tuple[str, str]
"""of a constant, or of a table of them and a key"""
TABLES = (
    "train_fms_acceleration",
    "train_llmfoundry_mpt",
    "train_optimum_benchmark_llama",
    "infer_optimum_benchmark_llama",
    "more/train_vtrain_megatron_a100",
    "more/infer_gptfast",
    "more/infer_hf_docs_sdpa",
    "more/train_hf_docs",
    "more/train_nanotron_h100",
    "more/train_torchtitan",
    "more/train_small_sources",
    "more/train_megatron_bridge",
    "more/infer_llamacpp_gpu_bench",
)
FITTED = (
    "GEMM_REALISED",
    "BANDWIDTH_REALISED",
    "BACKWARD_TRAFFIC",
    "LAUNCH_SECONDS",
    "BACKWARD_LAUNCH_SHARE",
    "DEQUANT_REALISED",
    "BIASED_ATTENTION",
    "COLLECTIVE_OPERATORS",
    "FUSED_BLOCK_OPERATORS",
    "UNIT_SECONDS",
    "OVERLAP_SHARE",
)
SERVED_TABLES = (
    "infer_optimum_benchmark_llama",
    "infer_hf_quantization_llama31",
    "more/infer_gptfast",
    "more/infer_hf_docs_sdpa",
    "more/infer_llamacpp_gpu_bench",
    "more/infer_small_sources",
)
SERVED: tuple[Name, ...] = (
    "CACHE_REALISED",
    "LLAMA_CPP_VECTOR_BYTES",
    ("ENGINE_BLOCK_SECONDS", "llama-cpp"),
    "PLAIN_DEQUANT_REALISED",
    ("DECODE_QUANT_OPERATORS", "nf4"),
    ("DECODE_QUANT_OPERATORS", "int8"),
)
"""read by generation alone"""
PRIOR: dict[Name, float] = {
    "GEMM_REALISED": 0.9,
    "BANDWIDTH_REALISED": 0.8,
    "BACKWARD_TRAFFIC": 2.0,
    "LAUNCH_SECONDS": 10e-6,
    "BACKWARD_LAUNCH_SHARE": 1.0,
    "DEQUANT_REALISED": 0.5,
    "BIASED_ATTENTION": 0.8,
    "COLLECTIVE_OPERATORS": 5.0,
    "FUSED_BLOCK_OPERATORS": 46.0,
    "UNIT_SECONDS": 0.5e-3,
    "OVERLAP_SHARE": 0.5,
    "CACHE_REALISED": 0.5,
    "LLAMA_CPP_VECTOR_BYTES": 0.04,
    ("ENGINE_BLOCK_SECONDS", "llama-cpp"): 40e-6,
    "PLAIN_DEQUANT_REALISED": 0.5,
    ("DECODE_QUANT_OPERATORS", "nf4"): 1.5,
    ("DECODE_QUANT_OPERATORS", "int8"): 3.0,
}
"""where every fit starts: what one would guess before seeing a run, so that left-out runs are truly unseen"""
UPPER = {
    "BIASED_ATTENTION": 1.0,
    "GEMM_REALISED": 1.0,
    "BANDWIDTH_REALISED": 0.92,
    "OVERLAP_SHARE": 1.0,
    "CACHE_REALISED": 1.0,
    "PLAIN_DEQUANT_REALISED": 1.0,
}
LOWER = {"BACKWARD_TRAFFIC": 1.5}
"""what physics or a profile does not allow to pass, whatever the runs say: a backward pass moves more than the forward"""
CAP = 0.7
FIRST_STEP, RESTART = 0.25, 9
OTHERS_WEIGHT = 0.25
"""of a table whose software is further from the emitted scripts"""
SAMPLE = 7
"""of the vTrain table's rows (they repeat few configurations) every 7th is used"""


@dataclass(frozen=True, slots=True)
class Run:
    table: str
    row: TableRow
    speed: float


def read_runs(folder: Path, tables: Sequence[str] = TABLES) -> list[Run]:
    runs = []
    for table in tables:
        with (folder / f"{table}.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        rows = rows[::SAMPLE] if "vtrain" in table else rows
        for raw in rows:
            if raw["oom"] != "false" or not raw["tokens_per_s_per_gpu"]:
                continue
            try:
                runs.append(Run(table, read_row(raw), float(raw["tokens_per_s_per_gpu"])))
            except Uncostable:
                continue
    return runs


def compute_errors(runs: list[Run]) -> list[float]:
    """Log of predicted over measured speed of each run."""
    models: dict[tuple, object] = {}
    errors = []
    for run in runs:
        estimate = estimate_row(run.row, models)
        errors.append(math.log(estimate.tokens_per_second / estimate.devices / run.speed))
    return errors


def compute_loss(runs: list[Run]) -> float:
    by_table: dict[str, list[float]] = defaultdict(list)
    for run, error in zip(runs, compute_errors(runs), strict=True):
        by_table[run.table].append(min(abs(error), CAP))
    weights = {table: OTHERS_WEIGHT if table.startswith("more/") else 1.0 for table in by_table}
    total = sum(weights[table] * statistics.fmean(values) for table, values in by_table.items())
    return total / sum(weights.values())


def read_constant(name: Name) -> Constant:
    return getattr(constants, name) if isinstance(name, str) else getattr(constants, name[0])[name[1]]


def set_constant(name: Name, value: float) -> None:
    """Its unit and source stay."""
    old = read_constant(name)
    new = Constant(value, old.unit, old.basis, old.source)
    if isinstance(name, str):
        setattr(constants, name, new)
    else:
        getattr(constants, name[0])[name[1]] = new
    importlib.reload(engines)  # its rows hold constants


def find_bound(name: Name, value: float) -> str | None:
    """Which bound stops it, "lower" or "upper"."""
    if value >= UPPER.get(name, math.inf):
        return "upper"
    return "lower" if value <= LOWER.get(name, 0.0) else None


def fit(runs: list, names: Sequence[Name], rounds: int, report=lambda text: None, loss=compute_loss) -> float:
    """Move one constant at a time up or down while the loss falls; steps shrink each round."""
    best, step = loss(runs), FIRST_STEP
    for turn in range(rounds):
        if turn and turn % RESTART == 0:
            step = FIRST_STEP  # leave a poor valley that one constant alone could not
        for name in names:
            start = read_constant(name)
            for factor in (1 + step, 1 / (1 + step)):
                value = max(min(start * factor, UPPER.get(name, math.inf)), LOWER.get(name, 0.0))
                set_constant(name, value)
                now = loss(runs)
                if now < best - 1e-6:
                    best = now
                    break
                set_constant(name, start)
        step *= 0.72
        report(f"round {turn + 1}: loss {best:.4f}")
    return best


def reset_constants(names: Sequence[Name]) -> None:
    for name in names:
        set_constant(name, PRIOR[name])


def print_constants(names: Iterable[Name]) -> None:
    for name in names:
        bound = find_bound(name, read_constant(name))
        note = f"  at its {bound} bound: the runs would go further" if bound else ""
        print(f"{name if isinstance(name, str) else '.'.join(name):34} {read_constant(name):.4g}{note}")


def score_left_out(
    runs: list[Run], names: Sequence[Name], key, rounds: int, least: int
) -> list[tuple[str, float, float]]:
    """For each value of ``key``: median absolute error of its runs, fitted with and without them."""
    start = {name: read_constant(name) for name in names}
    scores = []
    for value in sorted({key(run) for run in runs}):
        inside = [run for run in runs if key(run) == value]
        if len(inside) < least:
            continue
        fitted = statistics.median(abs(math.expm1(e)) for e in compute_errors(inside))
        reset_constants(names)
        fit([run for run in runs if key(run) != value], names, rounds)
        outside = statistics.median(abs(math.expm1(e)) for e in compute_errors(inside))
        scores.append((value, fitted, outside))
        for name, old in start.items():
            set_constant(name, old)
    return scores


KEYS = {
    "model": lambda run: run.row.spec.name,
    "device": lambda run: run.row.device.id,
    "table": lambda run: run.table,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--least", type=int, default=5, help="leave out only models or devices with so many runs")
    parser.add_argument("--leave-out", choices=KEYS)
    parser.add_argument("--served", action="store_true", help="what generation alone reads")
    args = parser.parse_args()
    names, tables = (SERVED, SERVED_TABLES) if args.served else (FITTED, TABLES)
    runs = read_runs(args.folder, tables)
    print(f"{len(runs)} runs, loss {compute_loss(runs):.4f}")
    if args.leave_out:
        rows = score_left_out(runs, names, KEYS[args.leave_out], args.rounds, args.least)
        print(f"{args.leave_out:45} fitted  left out   (median absolute speed error)")
        for value, fitted, outside in rows:
            print(f"{value:45} {fitted:6.1%}  {outside:7.1%}")
        return
    reset_constants(names)
    fit(runs, names, args.rounds, print)
    print_constants(names)


if __name__ == "__main__":
    main()
