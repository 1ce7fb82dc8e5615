"""Score the cost model on published runs that no fit has seen, nor any constant: benchmarks/held_out.csv.

usage: python benchmarks/held_out.py     prints a line for each kind of run, writes benchmarks/results/held_out.json

The rows are pages of Qwen, NVIDIA, IBM, AMD, Oracle and Tenstorrent, as `source` names them, in the columns of `perfgen estimate`. Memory is
compared where it is PyTorch's allocator's. Rows that cannot be costed stay in the table and are counted.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from validate import compute_percentile, predict  # noqa: E402

TABLE, RESULTS = HERE / "held_out.csv", HERE / "results" / "held_out.json"
LONG_PROMPT = 8_000
"""tokens, beyond which Transformers' generate is shown apart"""


def describe_kind(row: dict[str, str]) -> str:
    """Who published it, on what, and what ran."""
    publisher = row["source"].split("/")[0].split("@")[0]
    if row["phase"] == "train":
        form = f"{row['train']} on {row['quant']}" if row["quant"] != "none" else row["train"]
        form += ", mixture" if row["n_experts"] else ""
        form += ", one device" if row["gpus_per_node"] == row["nodes"] == "1" else ", several devices"
    else:
        generates = row["framework"].startswith("HF")
        form = "served" if not generates else "long prompts" if int(row["in_len"]) > LONG_PROMPT else "short prompts"
    return f"{publisher}: {row['framework']}, {form}, {row['device']}"


def compute_errors(truth: list[dict], predicted: list[dict]) -> dict[str, dict[str, list[float]]]:
    """By kind: predicted over published speed, whether that lies in its range (1 or 0), and the same ratio of memory."""
    kinds: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row, answer in zip(truth, predicted, strict=True):
        figures = kinds[describe_kind(row)]
        figures["costed"].append(float(not answer["error"]))
        if answer["error"]:
            continue
        published = float(row["tokens_per_s_per_gpu"])
        figures["speed"].append(float(answer["predicted_tokens_per_s_per_gpu"]) / published)
        low, high = (float(answer[f"predicted_tokens_per_s_{end}"]) for end in ("low", "high"))
        figures["inside"].append(float(low <= published <= high))
        if row["mem_metric"] == "torch_max_allocated":
            figures["memory"].append(float(answer["predicted_peak_mem_gb"]) / float(row["peak_mem_gb"]))
    return kinds


def summarise(figures: dict[str, list[float]]) -> dict[str, float | int | None]:
    summary: dict[str, float | int | None] = {"rows": len(figures["costed"]), "costed": sum(figures["costed"])}
    for name in ("speed", "memory"):
        ratios = figures[name]
        errors = [abs(ratio - 1) for ratio in ratios]
        summary[f"{name}_ratio"] = round(statistics.median(ratios), 3) if ratios else None
        summary[f"{name}_median_error"] = round(statistics.median(errors), 4) if errors else None
        summary[f"{name}_p95_error"] = round(compute_percentile(errors, 0.95), 4) if errors else None
    inside = figures["inside"]
    return summary | {"inside": round(statistics.mean(inside), 3) if inside else None}


def main() -> None:
    kinds = compute_errors(*predict(TABLE))
    every: dict[str, list[float]] = defaultdict(list)
    for figures in kinds.values():
        for name, values in figures.items():
            every[name] += values
    lines = {"all": summarise(every)} | {kind: summarise(figures) for kind, figures in sorted(kinds.items())}
    print(f"{'':76}{'rows':>5}{'speed':>7}{'error':>7}{'P95':>7}{'inside':>8}{'memory':>8}{'P95':>7}")
    for kind, line in lines.items():
        shares = ("speed_median_error", "speed_p95_error", "inside", "memory_median_error", "memory_p95_error")
        cells = [f"{line[key]:.1%}" if line[key] is not None else "-" for key in shares]
        ratio = f"{line['speed_ratio']:.2f}" if line["speed_ratio"] is not None else "-"
        print(
            f"{kind[:76]:76}{line['rows']:5}{ratio:>7}{cells[0]:>7}{cells[1]:>7}{cells[2]:>8}{cells[3]:>8}{cells[4]:>7}"
        )
    RESULTS.write_text(json.dumps(lines, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
