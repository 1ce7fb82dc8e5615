"""Steps of served models that others published, beside what the cost model says of them.

python benchmarks/served.py [--json | --fit]     by table and by device

benchmarks/served.csv has vLLM's runs, one a line, with the commit or the page that each was read from. ``measured`` says what
``seconds`` are: ``step``, the median time between two tokens while so many requests (micro_batch) were in the server; ``users``, the
same on average, prompts of others included; ``answer``, of a batch from its prompts to its last tokens; ``first``, the mean time to a
request's first token. The constants READ_REALISED, VLLM_STEP_SECONDS and VLLM_SEQUENCE_SECONDS are fitted on steps and answers of
single devices and of those with direct links.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.fit import CAP, Name, fit, print_constants, set_constant
from benchmarks.validate import compute_percentile
from generator.cost import CostModel
from generator.cost.decode import compute_step
from generator.cost.serving import compute_serving
from generator.estimate.rows import TableRow, read_row
from generator.estimate.table import find_model

Run = tuple[dict[str, str], TableRow]
"""a line of the table, and what it states"""
Predict = Callable[[str, TableRow, CostModel], float]
"""seconds of what a line's ``measured`` says"""
TABLE = Path(__file__).resolve().with_suffix(".csv")
PRIOR: dict[Name, float] = {
    "READ_REALISED": 0.85,
    ("VLLM_STEP_SECONDS", "vllm"): 1e-3,
    ("VLLM_STEP_SECONDS", "vllm-0.8"): 1e-3,
    ("VLLM_STEP_SECONDS", "vllm-0"): 1e-3,
    ("VLLM_SEQUENCE_SECONDS", "vllm"): 10e-6,
    ("VLLM_SEQUENCE_SECONDS", "vllm-0.8"): 10e-6,
    ("VLLM_SEQUENCE_SECONDS", "vllm-0"): 10e-6,
}
"""where a fit starts"""
ROUNDS = 27


class Figure(NamedTuple):
    row: dict[str, str]
    measured: float
    predicted: float
    """seconds, both"""

    @property
    def ratio(self) -> float:
        return self.predicted / self.measured


def read_runs(table: Path = TABLE) -> list[Run]:
    with table.open(encoding="utf-8", newline="") as rows:
        return [(row, read_row(row)) for row in csv.DictReader(rows)]


def predict_seconds(measured: str, stated: TableRow, model: CostModel) -> float:
    """Of a row of the table, what its ``measured`` says."""
    run = stated.execution
    if measured == "step":
        step = compute_step(model.shape, run, model.rates, run.seq_len + run.new_tokens / 2)
        return step.busy + step.beyond
    if measured in ("users", "first"):
        serving = compute_serving(model.shape, run.but(continuous=True), model.rates)
        return serving.ttft_seconds if measured == "first" else serving.seconds_per_token
    return model.estimate(run).step_seconds


def list_figures(runs: Iterable[Run], predict: Predict = predict_seconds) -> Iterator[Figure]:
    models: dict[tuple, CostModel] = {}  # made anew: their rates hold constants
    for row, stated in runs:
        yield Figure(row, float(row["seconds"]), predict(row["measured"], stated, find_model(stated, models)))


def is_apart(row: dict[str, str]) -> bool:
    """Boards at 63 % of their power, and one whose host takes 11 ms a step even with a model of 1.5 billion parameters."""
    return bool(row.get("notes")) or (row["device"] == "rtx-4090" and "1.5B" in row["model"])


def is_fitted(row: dict[str, str]) -> bool:
    """Whether the constants may follow it: what links without direct reads take is no engine's."""
    return row["measured"] != "first" and not is_apart(row) and (row["tp"] == "1" or "-sxm" in row["device"])


def compute_loss(runs: list[Run], predict: Predict = predict_seconds) -> float:
    """The mean of log errors, each at most CAP."""
    return statistics.fmean(min(abs(math.log(figure.ratio)), CAP) for figure in list_figures(runs, predict))


def fit_constants(runs: list[Run], prior: Mapping[Name, float], predict: Predict = predict_seconds) -> None:
    for name, value in prior.items():
        set_constant(name, value)
    fit(runs, list(prior), ROUNDS, print, partial(compute_loss, predict=predict))
    print_constants(prior)


def name_source(row: dict[str, str]) -> str:
    return row["source"].split("@")[0]


def show(figures: list[Figure]) -> None:
    print(f"{'predicted over measured':<58} rows  median      P10   P90   median error    P95")
    by_source: dict[str, list[Figure]] = defaultdict(list)
    by_device: dict[str, list[Figure]] = defaultdict(list)
    steps, firsts = ([f for f in figures if (f.row["measured"] == "first") is wanted] for wanted in (False, True))
    for figure in steps:
        row = figure.row
        by_source[name_source(row)].append(figure)
        by_device[
            f"{row['framework'].partition(' ')[0]} {row['software_date'][:4]}, {row['tp']} x {row['device']}"
        ].append(figure)
    for groups in (by_source, by_device):
        for name, members in sorted(groups.items()):
            print(describe_group(name, members))
        print()
    print(describe_group("all steps and answers", steps))
    print(describe_group("times to a first token, one device", firsts))


def describe_group(name: str, members: list[Figure]) -> str:
    ratios = sorted(f.ratio for f in members)
    errors = [abs(x - 1) for x in ratios]
    low, high = compute_percentile(ratios, 0.1), compute_percentile(ratios, 0.9)
    middle, worst = statistics.median(errors), compute_percentile(errors, 0.95)
    return f"{name:<58} {len(members):4}  {statistics.median(ratios):6.2f}   {low:6.2f} {high:5.2f}         {middle:6.1%} {worst:6.1%}"


def main() -> None:
    args = parse_arguments(__doc__)
    if args.fit:
        fit_constants([run for run in read_runs() if is_fitted(run[0])], PRIOR)
        return
    figures = list(list_figures(read_runs()))
    if args.json:
        print_rows(figures)
    else:
        show(figures)


def print_rows(figures: list[Figure]) -> None:
    rows = [{**f.row, "predicted_seconds": float(f"{f.predicted:.5g}"), "ratio": round(f.ratio, 3)} for f in figures]
    print(json.dumps(rows, indent=1))


def parse_arguments(doc: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--json", action="store_true", help="every row")
    ways.add_argument("--fit", action="store_true", help="the constants anew")
    return parser.parse_args()


if __name__ == "__main__":
    main()
