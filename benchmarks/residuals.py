"""How far published runs are from their estimates, by kind of run: generator/cost/residuals.toml.

usage: python benchmarks/residuals.py MEASURED_DIR [--write]

Prints, for each table, device and generation that is left out, which share of its rows lies between the 10th and the 90th percentile
that the others give; times of a generation as widen_unmeasured has them. ``--write`` replaces the file; do it after every fit. Speeds
of all rows count, those of benchmarks/served.csv and local.csv too, memory where PyTorch's own peak of allocated memory is stated: what
nvidia-smi says has the context and the cache in it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import local, served
from benchmarks.validate import list_tables, predict
from generator.cost.constants import UNMEASURED_GENERATION
from generator.cost.interval import QUANTITIES, Kind, name_generation, name_kind, weigh_cells
from generator.estimate.table import Uncostable, read_row
from hwdetect import catalog

PLACES = 5
"""ratios that a cell keeps: the middles of as many equal parts of its rows"""
OUT = Path(__file__).resolve().parents[1] / "generator/cost/residuals.toml"
HEADER = """\
# Written by benchmarks/residuals.py after a fit; generator/cost/interval.py reads it.
# ratios: measured over predicted, at 10, 30, 50, 70 and 90 % of the rows of one table, device and kind.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """One row of a table: measured over predicted."""

    quantity: str
    table: str
    kind: Kind
    ratio: float


def list_residuals(folder: Path) -> Iterator[Residual]:
    for table in list_tables(folder, everything=True):
        for row, predicted in zip(*predict(table), strict=True):
            if predicted["error"] or row["oom"] != "false":
                continue
            try:
                case = read_row(row)
            except Uncostable:
                continue
            kind = name_kind(case.device, case.execution)
            for quantity, ratio in compare_row(row, predicted):
                yield Residual(quantity=quantity, table=table.stem, kind=kind, ratio=ratio)
    yield from list_own_residuals(served.TABLE, served.predict_seconds)
    yield from list_own_residuals(local.TABLE, local.predict_seconds)


def list_own_residuals(table: Path, ask: served.Predict) -> Iterator[Residual]:
    """Of steps and prompts that others published of engines; times to a first token have queues in them."""
    runs = [run for run in served.read_runs(table) if run[0]["measured"] != "first" and not served.is_apart(run[0])]
    for (_, stated), figure in zip(runs, served.list_figures(runs, ask), strict=True):
        kind = name_kind(stated.device, stated.execution)
        yield Residual(quantity="step_seconds", table=table.stem, kind=kind, ratio=1 / figure.ratio)


def is_soft(row: dict) -> bool:
    """A time that its own table doubts: QLoRA of one document, ten times as slow as all other published runs of it."""
    return "QLoRA time as soft" in row["notes"] and "nf4" in row["quant"]


def compare_row(row: dict, predicted: dict) -> Iterator[tuple[str, float]]:
    """Quantities of a row that are measured and predicted, with their ratios."""
    speeds = [float(x or 0) for x in (row["tokens_per_s_per_gpu"], predicted["predicted_tokens_per_s_per_gpu"])]
    if all(speeds) and not is_soft(row):
        yield "step_seconds", speeds[1] / speeds[0]
    metric = row["mem_metric"]
    if row["peak_mem_gb"] and "allocated" in metric and "reserved" not in metric:
        yield "allocator_peak", float(row["peak_mem_gb"]) / float(predicted["predicted_peak_mem_gb"])


def collect_cells(residuals: list[Residual]) -> dict[str, list[tuple[str, Kind, int, tuple[float, ...]]]]:
    """By quantity: table, kind, rows and ratios of each cell."""
    groups: dict[tuple, list[float]] = defaultdict(list)
    for residual in residuals:
        groups[residual.quantity, residual.table, residual.kind].append(residual.ratio)
    cells: dict[str, list] = {quantity: [] for quantity in QUANTITIES}
    for (quantity, table, kind), ratios in sorted(groups.items(), key=lambda item: (item[0][:2], str(item[0][2]))):
        cells[quantity].append((table, kind, len(ratios), pick_places(sorted(ratios))))
    return cells


def pick_places(ordered: list[float]) -> tuple[float, ...]:
    return tuple(
        float(f"{ordered[min(len(ordered) - 1, int((place + 0.5) / PLACES * len(ordered)))]:.3g}")
        for place in range(PLACES)
    )


def measure_coverage(residuals: list[Residual], part: str) -> dict[str, dict[str, tuple[int, int]]]:
    """By quantity and left-out ``part`` (table, device or generation): rows inside the interval that the others give, and rows."""
    coverage: dict[str, dict[str, tuple[int, int]]] = {quantity: {} for quantity in QUANTITIES}
    for name in sorted({name_part(residual, part) for residual in residuals}):
        cells = collect_cells([residual for residual in residuals if name_part(residual, part) != name])
        for quantity in QUANTITIES:
            mine = [r for r in residuals if name_part(r, part) == name and r.quantity == quantity]
            intervals = {
                kind: weigh_cells(kind, tuple(cell[1:] for cell in cells[quantity])) for kind in {r.kind for r in mine}
            }
            judged = [(intervals[r.kind], r.ratio) for r in mine if intervals[r.kind]]
            if judged:
                wider = UNMEASURED_GENERATION if (part, quantity) == ("generation", "step_seconds") else 1.0
                inside = sum(x.low / wider <= ratio <= x.high * wider for x, ratio in judged)
                coverage[quantity][name] = inside, len(judged)
    return coverage


def name_part(residual: Residual, part: str) -> str:
    """Of a generation training and inference apart: neither says anything of the other."""
    if part == "table":
        return residual.table
    device = residual.kind.device
    if part == "device" or device not in catalog.list_ids():
        return device
    vendor, generation, _ = name_generation(catalog.load(device))
    return f"{vendor} {generation} {residual.kind.mode}"


def format_cells(cells: dict[str, list]) -> str:
    lines = [HEADER]
    for quantity, rows in cells.items():
        lines.append(f"{quantity} = [")
        for table, kind, count, ratios in rows:
            values = {"table": table, **dataclasses.asdict(kind), "rows": count, "ratios": list(ratios)}
            lines.append("  { " + ", ".join(f"{key} = {json.dumps(value)}" for key, value in values.items()) + " },")
        lines.append("]")
    return "\n".join(lines) + "\n"


def show_coverage(coverage: dict[str, dict[str, tuple[int, int]]], part: str) -> None:
    for quantity, parts in coverage.items():
        inside, rows = (sum(counts[place] for counts in parts.values()) for place in (0, 1))
        print(f"{quantity}: {inside / rows:.1%} of {rows} rows inside when their {part} is left out")
        for name, (lies, count) in parts.items():
            print(f"  {name:34}{lies / count:7.1%} of {count}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    residuals = list(list_residuals(args.folder))
    for part in ("table", "device", "generation"):
        show_coverage(measure_coverage(residuals, part), part)
    if args.write:
        OUT.write_text(format_cells(collect_cells(residuals)), encoding="utf-8")


if __name__ == "__main__":
    main()
