"""What llama.cpp and MLX do on people's own machines, as they published it, beside what the cost model says.

python benchmarks/local.py [--json | --fit]     by engine and device

benchmarks/local.csv has one run a line, with the page or the commit that it was read from: Apple's GPUs, and boards of AMD and NVIDIA of
which no constant was made. ``measured`` says what ``seconds`` are: ``step``, the mean time between two tokens of one answer, or
``prompt``, the time that computing a prompt takes. The constants of Metal are fitted on Apple's; the M2 Ultra of `make validate` is none
of them.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import served
from benchmarks.fit import Name
from benchmarks.served import (
    Figure,
    describe_group,
    fit_constants,
    list_figures,
    parse_arguments,
    print_rows,
    read_runs,
)
from generator.cost import CostModel
from generator.cost.prefill import compute_prefill_seconds
from generator.estimate.rows import TableRow

TABLE = Path(__file__).resolve().with_suffix(".csv")
PRIOR: dict[Name, float] = {
    ("METAL_BLOCK_SECONDS", "llama-cpp"): 1e-4,
    "METAL_READS": 1.1,
    ("METAL_VECTOR_READS", "llama-cpp-metal"): 0.02,
    ("METAL_VECTOR_READS", "llama-cpp-metal-2024"): 0.02,
    ("METAL_CACHE_REALISED", "llama-cpp"): 0.5,
    "METAL_PACKED_RATE": 0.9,
}
"""where a fit starts"""
APPLE = ("m1", "m2", "m3", "m4")


def predict_seconds(measured: str, stated: TableRow, model: CostModel) -> float:
    """Prompts that nothing waits beside; a step is as in a server."""
    if measured == "prompt":
        return compute_prefill_seconds(model.shape, stated.execution, model.rates)
    return served.predict_seconds(measured, stated, model)


def name_group(row: dict[str, str]) -> str:
    engine = row["framework"].partition(" ")[0].rstrip(",")
    form = "plain" if row["quant"] == "none" else "packed"
    return f"{engine} {row['software_date'][:4]}, {row['device']}, {row['measured']}, {form}"


def show(figures: list[Figure]) -> None:
    print(f"{'predicted over measured':<58} rows  median      P10   P90   median error    P95")
    groups: dict[str, list[Figure]] = defaultdict(list)
    for figure in figures:
        groups[name_group(figure.row)].append(figure)
    for name, members in sorted(groups.items()):
        print(describe_group(name, members))
    print(describe_group("all", figures))


def main() -> None:
    args = parse_arguments(__doc__)
    runs = read_runs(TABLE)
    if args.fit:
        fit_constants([run for run in runs if run[0]["device"].startswith(APPLE)], PRIOR, predict_seconds)
        return
    figures = list(list_figures(runs, predict_seconds))
    if args.json:
        print_rows(figures)
    else:
        show(figures)


if __name__ == "__main__":
    main()
