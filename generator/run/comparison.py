"""Predicted against measured."""

from __future__ import annotations

import json
import platform
from pathlib import Path

from generator.errors import SmokeError, mask_secrets
from generator.run.stage import Stage


def compare(plan: dict, out: Path, stages: list[Stage]) -> dict:
    """Predicted against measured, in the form of benchmarks/results."""
    rows = []
    measured: dict = {}
    if plan["project"]["mode"] == "train":
        measured = read_run(out)
        predicted = plan["estimate"]
        for what, unit, ours, theirs in (
            ("step time", "s", predicted["step_seconds"], measured["step_seconds"]),
            ("tokens/s", "1/s", predicted["tokens_per_second"], measured["tokens_per_second"]),
            ("peak memory", "GiB", predict_measured_memory(plan), measured["peak_memory_gib"]),
        ):
            rows.append(
                {
                    "what": what,
                    "unit": unit,
                    "predicted": ours,
                    "measured": theirs,
                    "ratio": theirs / ours if ours else None,
                }
            )
    return {
        "schema": 1,
        "technique": plan["choice"],
        "device": plan["project"]["machine"],
        "host": {"machine": platform.machine(), "python": platform.python_version()},
        "versions": measured.get("versions", plan["versions"]),
        "model": plan["case"]["model"]["name"],
        "workload": plan["case"]["workload"],
        "commands": [[Path(s.command[0]).name, *s.command[1:]] for s in stages],
        "stage_seconds": {s.name: round(s.seconds, 2) for s in stages},
        "losses": measured.get("losses", []),
        "repeats": measured.get("steps", []),
        "comparison": rows,
        "answer": mask_secrets(read_answer(stages[-1].output)),
    }


def read_run(out: Path) -> dict:
    """What train.py measured. Raises ``SmokeError``."""
    path = out / "run.json"
    try:
        measured = json.loads(path.read_text(encoding="utf-8"))
        missing = {"step_seconds", "tokens_per_second", "peak_memory_gib"} - measured.keys()
    except (OSError, ValueError, AttributeError) as error:
        raise SmokeError(f"train: ended well, but left no readable {path}: {error}") from error
    if missing:
        raise SmokeError(f"train: {path} lacks {', '.join(sorted(missing))}")
    return measured


def read_answer(output: str) -> str:
    """What infer.py printed after its line of speed, else the last line."""
    _, found, text = output.rpartition("tokens/s\n")
    lines = text.strip().splitlines() if found else output.strip().splitlines()[-1:]
    return " / ".join(lines)[:300]


def predict_measured_memory(plan: dict) -> float:
    """What the measuring call sees: the process on a CPU, the allocator's peak on a GPU."""
    estimate = plan["estimate"]
    return estimate["peak_memory_gib"] if plan["project"]["device"] != "cuda" else estimate["allocator_peak_gib"]


def format_lines(result: dict) -> list[str]:
    found = [f"{'':14}{'predicted':>12}{'measured':>12}   ratio"]
    for row in result["comparison"]:
        ratio = f"{row['ratio']:.2f}" if row["ratio"] else "-"
        found.append(f"{row['what']:<14}{row['predicted']:>12.4g}{row['measured']:>12.4g}   {ratio}  ({row['unit']})")
    if result["losses"]:
        found.append(f"loss {result['losses'][0]:.3f} → {result['losses'][-1]:.3f} over {len(result['losses'])} steps")
    return found
