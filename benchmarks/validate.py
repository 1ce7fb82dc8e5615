"""Score the cost model on published runs, beside the formulas that well-known tools print for the same rows.

usage: python benchmarks/validate.py MEASURED_DIR [--all] [--json]     (make validate: every table)

MEASURED_DIR holds the measured tables and their scorer (score.py). Nothing is left out: rows that could not be costed
lower ``costed``, and the reasons are listed. ``--all`` adds the tables of MEASURED_DIR/more.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import statistics
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from generator.cost.shape import build_shape
from generator.estimate.table import Uncostable, estimate_table, read_row

AIMS = {
    "mem_median": ("peak memory, median error", 0.03),
    "mem_p95": ("peak memory, P95 error", 0.10),
    "false_fit": ("predicted to fit but ran out", 0.01),
    "false_refuse": ("predicted not to fit but ran", 0.02),
    "tput_median": ("speed, median error", 0.10),
    "tput_p95": ("speed, P95 error", 0.30),
    "rank_corr": ("rank correlation in a group, median", 0.95),
    "regret_mean": ("regret of the choice, mean", 0.02),
    "regret_p95": ("regret of the choice, P95", 0.08),
}


def load_scorer(folder: Path):
    spec = importlib.util.spec_from_file_location("score", folder / "score.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.score


def predict(table: Path) -> tuple[list[dict], list[dict]]:
    """The measured rows and the predicted ones."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.csv"
        estimate_table(table, out)
        with table.open(newline="", encoding="utf-8") as a, out.open(newline="", encoding="utf-8") as b:
            return list(csv.DictReader(a)), list(csv.DictReader(b))


def estimate_8_bytes(case, shape) -> float | None:
    """accelerate estimate-memory: training with Adam is four times the 16-bit weights. For full training."""
    return 8.0 * shape.params if case.execution.mode == "train" and case.execution.train == "full" else None


def estimate_18_bytes(case, shape) -> float | None:
    """Transformers "model memory anatomy": 6 weights + 4 gradients + 8 Adam states. For full training."""
    return 18.0 * shape.params if case.execution.mode == "train" and case.execution.train == "full" else None


def estimate_like_llama_factory(case, shape) -> float:
    """LLaMA-Factory's hardware table: GB for x billion parameters, by method."""
    run = case.execution
    if run.quant in ("nf4", "gptq-4bit"):
        return 0.5 * shape.params
    if run.quant == "int8":
        return 1.0 * shape.params
    if run.train == "lora" or run.mode == "infer":
        return 2.0 * shape.params
    return (18.0 if run.autocast_dtype else 8.0) * shape.params


def estimate_like_deepspeed(case, shape) -> float | None:
    """DeepSpeed's ZeRO-3 estimator without offload: 4 bytes of the largest layer and 18 P / devices. For sharded training."""
    if case.execution.train != "full" or not case.execution.sharding.divides_weights:
        return None
    largest = max(x.inputs * x.outputs for x in shape.linears)
    return 4.0 * largest + 18.0 * shape.params / case.execution.dp


def estimate_half_of_peak(case) -> float | None:
    """Tokens per second and device at half of the peak of 16-bit products: 6 operations per parameter and token. For training."""
    if case.execution.mode != "train":
        return None
    peak = dict(case.device.peak_flops)
    half = peak.get("bf16") or peak.get("fp16")
    return 0.5 * half / (6.0 * (case.spec.active_params or case.spec.params)) if half else None


def compute_naive_errors(rows: list[dict]) -> list[float]:
    """Absolute relative error of ``estimate_half_of_peak`` on the rows that ran."""
    errors = []
    for row in rows:
        if row["oom"] != "false" or not row["tokens_per_s_per_gpu"]:
            continue
        try:
            predicted = estimate_half_of_peak(read_row(row))
        except Uncostable:
            continue
        if predicted is not None:
            errors.append(abs(predicted / float(row["tokens_per_s_per_gpu"]) - 1))
    return errors


PEERS = {
    "accelerate estimate-memory (8 bytes a parameter)": estimate_8_bytes,
    "18 bytes a parameter": estimate_18_bytes,
    "LLaMA-Factory table": estimate_like_llama_factory,
    "DeepSpeed ZeRO-3 estimator": estimate_like_deepspeed,
}


def compute_peer_errors(rows: list[dict]) -> dict[str, list[float]]:
    """Absolute relative error of each peer's formula; sharded rows divide by the devices, as their users do."""
    errors: dict[str, list[float]] = {name: [] for name in PEERS}
    for row in rows:
        if row["oom"] != "false" or not row["peak_mem_gb"] or "torch_max_allocated" not in row["mem_metric"]:
            continue
        try:
            case = read_row(row)
        except Uncostable:
            continue
        shape = build_shape(case.spec, case.task, 0)
        sharded = case.execution.dp if case.execution.sharding.by_fsdp else 1
        for name, formula in PEERS.items():
            predicted = formula(case, shape)
            if predicted is None:
                continue
            divide = 1 if formula is estimate_like_deepspeed else sharded
            errors[name].append(abs(predicted / divide / 1e9 / float(row["peak_mem_gb"]) - 1))
    return errors


def compute_percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def list_tables(folder: Path, everything: bool) -> list[Path]:
    """Tables of runs; ``everything``: those of ``more`` too."""
    more = sorted((folder / "more").glob("*.csv")) if everything else []
    return [*sorted(folder.glob("*.csv")), *(table for table in more if not table.name.startswith("hw_"))]


def validate(folder: Path, everything: bool) -> dict:
    score = load_scorer(folder)
    report: dict = {"tables": {}, "devices": {}, "peers": {}, "errors": {}}
    all_truth, all_predicted = [], []
    for table in list_tables(folder, everything):
        truth, predicted = predict(table)
        report["tables"][table.stem] = score(truth, predicted) | describe_naive(truth)
        report["errors"][table.stem] = dict(Counter(p["error"] for p in predicted if p["error"]).most_common(6))
        all_truth += truth
        all_predicted += predicted
    report["total"] = score(all_truth, all_predicted) | describe_naive(all_truth)
    trained = [(t, p) for t, p in zip(all_truth, all_predicted, strict=True) if t["phase"] == "train"]
    report["training"] = score(*map(list, zip(*trained, strict=True)))
    report["inference"] = validate_inference(all_truth, all_predicted)
    for device in sorted({row["device"] for row in all_truth}):
        pairs = [(t, p) for t, p in zip(all_truth, all_predicted, strict=True) if t["device"] == device]
        truth, predicted = map(list, zip(*pairs, strict=True))
        report["devices"][device or "not stated"] = score(truth, predicted) | describe_naive(truth)
    for name, errors in compute_peer_errors(all_truth).items():
        report["peers"][name] = {
            "median": statistics.median(errors),
            "p95": compute_percentile(errors, 0.95),
            "rows": len(errors),
        }
    return report


def validate_inference(truth: list[dict], predicted: list[dict]) -> dict:
    """How many of the rows that state lengths, batch and device are costed, and the error of the speed by engine and device.
    Stated at full load is a batch too: as many as fit. Lengths: the prompt's or, where one sequence answers, the answer's."""
    pairs = [(t, p) for t, p in zip(truth, predicted, strict=True) if t["phase"] == "infer"]
    stated = [p for t, p in pairs if states_workload(t)]
    groups: dict[str, list[float]] = {}
    for row, answer in pairs:
        speeds = [float(x or 0) for x in (row["tokens_per_s_per_gpu"], answer["predicted_tokens_per_s_per_gpu"])]
        if row["oom"] != "false" or not all(speeds):
            continue
        kind = f"{row['framework'].split(' (')[0].split(',')[0][:22]}, {row['device']}, {describe_phase(row)}"
        groups.setdefault(kind, []).append(abs(speeds[1] / speeds[0] - 1))
    errors = [error for group in groups.values() for error in group]
    return {
        "rows": len(pairs),
        "stated": len(stated),
        "costed": sum(not p["error"] for p in stated) / len(stated) if stated else None,
        "timed": len(errors),
        "median": statistics.median(errors) if errors else None,
        "p95": compute_percentile(errors, 0.95) if errors else None,
        "groups": {
            kind: {"rows": len(group), "median": statistics.median(group), "p95": compute_percentile(group, 0.95)}
            for kind, group in sorted(groups.items())
        },
    }


def states_workload(row: dict) -> bool:
    batch = row["micro_batch"] or row["global_batch"] or "throughput" in row["notes"]
    return bool(row["device"] and batch and (row["in_len"] or row["out_len"]))


def describe_phase(row: dict) -> str:
    """Whether the row's speed is of prompts or of new tokens."""
    return "prompts" if row["in_len"] and float(row["in_len"]) and row["out_len"] in ("0", "1") else "new tokens"


def describe_naive(rows: list[dict]) -> dict:
    errors = compute_naive_errors(rows)
    return {"naive_median": statistics.median(errors) if errors else None, "naive_rows": len(errors)}


def show_lines(what: str, lines: dict[str, dict]) -> None:
    short = {"mem_median": "mem", "mem_p95": "P95", "tput_rows": "timed", "tput_median": "speed", "tput_p95": "P95"}
    short |= {"naive_median": "naive", "rank_corr": "rank", "regret_mean": "regret"}
    short |= {"false_fit": "f.fit", "false_refuse": "f.ref", "costed": "costed"}
    print(f"\n{what:34}{'rows':>6}" + "".join(f"{label:>8}" for label in short.values()))
    for name, figures in lines.items():
        cells = "".join(show_cell(figures[key]) for key in short)
        print(f"{name[:34]:34}{figures['rows']:6}{cells}")


def show_cell(value: float | None) -> str:
    if value is None:
        return "       -"
    return f"{value:8}" if isinstance(value, int) else f"{value:8.3f}"


def show_inference(figures: dict) -> None:
    if not figures["timed"]:
        return
    print(f"\ninference: {figures['rows']} rows, {figures['stated']} state lengths, batch and device, ", end="")
    print(f"{figures['costed']:.1%} of these costed")
    print(f"{'speed by engine and device':58} {'rows':>5} {'median':>7} {'P95':>7}")
    lines = {"all": {**figures, "rows": figures["timed"]}} | figures["groups"]
    for name, line in lines.items():
        print(f"{name:58} {line['rows']:5} {line['median']:7.1%} {line['p95']:7.1%}")


def show(report: dict) -> None:
    total = report["total"]
    print(f"{total['rows']} rows, {total['costed']:.1%} costed\n")
    print(f"{'figure':40} {'aim':>7} {'here':>7}")
    for key, (label, aim) in AIMS.items():
        value = total[key]
        print(f"{label:40} {aim:7.1%} {value:7.1%}" if value is not None else f"{label:40} {aim:7.1%}       -")
    for key in ("tput_median", "tput_p95"):
        label, aim = AIMS[key]
        print(f"{label + ' (training)':40} {aim:7.1%} {report['training'][key]:7.1%}")
    show_inference(report["inference"])
    print("\npeak memory on the rows it is meant for   rows  median     P95")
    print(f"{'perfgen':40} {total['mem_rows']:6} {total['mem_median']:6.1%}  {total['mem_p95']:6.1%}")
    for name, figures in report["peers"].items():
        print(f"{name[:40]:40} {figures['rows']:6} {figures['median']:6.1%}  {figures['p95']:6.1%}")
    show_lines("table", report["tables"])
    show_lines("device", report["devices"])
    print("naive: the median error of half of the 16-bit peak over 6 operations per parameter and token, training rows")
    print("\nnot costed")
    for table, reasons in report["errors"].items():
        for reason, count in reasons.items():
            print(f"  {table}: {count} × {reason}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    report = validate(args.folder, args.all)
    if args.json:
        print(json.dumps(report, indent=1))
    else:
        show(report)


if __name__ == "__main__":
    main()
