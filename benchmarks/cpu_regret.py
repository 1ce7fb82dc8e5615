"""Training on a CPU: the plan of a generated project beside the other plans of the same run, each of them run.

python benchmarks/cpu_regret.py MODEL DATA --work sft|lora|pretraining|classification
                                                                           writes benchmarks/results/cpu_regret.json

Every alternative is the project that perfgen generates with one decision pinned, or the same project with another micro-batch; all
train the same rows from the same seed, a few steps each, in processes of their own and one after the other. What the plan refuses is
listed with its reason; what it expects to take more than ``--slower`` times as long is not run. Times are CPU seconds of a step on one
thread, the first steps left out (SETTLING) and priced as the plan does, once over all steps that were planned; rows differ in length, so
that a step is one of as many tokens as the plan has in a step. Regret is how much longer the plan's choice took than the fastest. Rows of
other works and models stay.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from flattened import name_processor, time_program

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RESULTS = HERE / "results" / "cpu_regret.json"
SETTLING = 2
"""Steps that are not compared: they compile and check, and the second lays out memory beside the optimizer's states."""
ASKED = {
    "sft": {"--task": "sft"},
    "lora": {"--task": "sft", "--train": "lora", "--lora-dropout": "0"},
    "pretraining": {"--task": "causal-lm", "--seq-len": "128"},
    "classification": {"--task": "text-classification"},
}
PINS = (
    *(f"packing={name}" for name in ("padded", "group-by-length", "flattened", "shared-prefix", "packed")),
    *(f"precision={name}" for name in ("fp32", "bf16")),
    *(f"checkpointing={name}" for name in ("off", "full", "every-2", "every-3", "selective")),
    *(f"compile={name}" for name in ("off", "default", "regional")),
    *(f"attention={name}" for name in ("sdpa", "eager")),
    *(f"loss={name}" for name in ("plain", "chunked")),
    *(f"optimizer={name}" for name in ("adamw", "adamw-fused")),
)
"""What touches neither convergence nor the number of processes: an AdamW is an AdamW."""


@dataclass(slots=True)
class Alternative:
    """A project and what the plan says of it. ``planned_tokens``: of a step, padding left out. ``flags``: of train.py. ``runs``: what was
    measured, round by round."""

    name: str
    folder: Path
    predicted_seconds: float
    predicted_gib: float
    planned_tokens: float
    flags: tuple[str, ...] = ()
    runs: list[dict] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--work", choices=ASKED, required=True)
    parser.add_argument("--planned-steps", type=int, default=1000, help="that the plan is made for")
    parser.add_argument("--steps", type=int, default=5, help="that are run")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--slower", type=float, default=2.0)
    parser.add_argument(
        "--hardware", help="what detect --measure --json wrote, of one CPU (taskset -c 1), so that rates are measured"
    )
    parser.add_argument("--pins", nargs="*", choices=PINS, default=list(PINS))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        row = measure(Path(folder), asked)
    print_table(row)
    kept = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"] if RESULTS.exists() else []
    same = (row["work"], row["model"], row["device"])
    rows = [other for other in kept if (other["work"], other["model"], other["device"]) != same]
    result = {
        "schema": 1,
        "what": "CPU seconds of a step on one thread and GiB at the peak: the plan's choice and its alternatives",
        "rows": [*rows, row],
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def measure(folder: Path, asked: argparse.Namespace) -> dict:
    """All that was predicted and measured of one work."""
    chosen = generate(folder / "chosen", asked)
    plan = read_plan(chosen)
    alternatives, refused = list_alternatives(folder, asked, chosen)
    runs = [a for a in alternatives if a.predicted_seconds <= asked.slower * plan["estimate"]["step_seconds"]]
    for number in range(asked.rounds):
        for place, alternative in enumerate(runs):
            alternative.runs.append(run(alternative, folder / f"run-{number}-{place}.json", asked.steps))
            print(f"{alternative.name}: {alternative.runs[-1]}", flush=True)
    measured = [describe(alternative, asked.planned_steps) for alternative in runs]
    fastest = min(measured, key=lambda row: row["ranked_seconds"])
    measured_on = " --hardware MEASURED" if asked.hardware else ""
    return {
        "work": asked.work,
        "model": Path(asked.model).name,
        "device": f"{name_processor()}, one thread",
        "versions": {name: version(name) for name in ("torch", "transformers", "trl", "peft")},
        "command": f"python benchmarks/cpu_regret.py MODEL DATA --work {asked.work} --planned-steps {asked.planned_steps} "
        f"--steps {asked.steps} --batch {asked.batch} --rounds {asked.rounds} --slower {asked.slower:g}{measured_on}",
        "choice": plan["choice"],
        "fastest": fastest["name"],
        "regret": measured[0]["ranked_seconds"] / fastest["ranked_seconds"] - 1,
        "alternatives": measured,
        "refused": refused,
        "expected_to_be_slower": {a.name: a.predicted_seconds for a in alternatives if a not in runs},
    }


def list_alternatives(folder: Path, asked: argparse.Namespace, chosen: Path) -> tuple[list[Alternative], dict]:
    """The plan's own choice first; and of what is refused the reason."""
    plan = read_plan(chosen)
    estimate, batch = plan["estimate"], plan["batch"]
    tokens = estimate["step_seconds"] * estimate["tokens_per_second"]
    listed = [Alternative("as planned", chosen, estimate["step_seconds"], estimate["peak_memory_gib"], tokens)]
    for split in batch["splits"]:
        if split["micro_batch"] != batch["micro_batch"] and split["fits"]:
            flags = ("--per_device_train_batch_size", str(split["micro_batch"]))
            flags += ("--gradient_accumulation_steps", str(split["accumulation"]))
            name = f"micro-batch {split['micro_batch']}"
            listed.append(Alternative(name, chosen, split["step_seconds"], split["peak_memory_gib"], tokens, flags))
    refused = {}
    for pin in asked.pins:
        axis, _, technique = pin.partition("=")
        if plan["choice"].get(axis) == technique:
            continue
        try:
            other = generate(folder / pin.replace("=", "-"), asked, pin)
        except subprocess.CalledProcessError as error:
            refused[pin] = " ".join(error.stderr.split())
            continue
        estimate = read_plan(other)["estimate"]
        listed.append(Alternative(pin, other, estimate["step_seconds"], estimate["peak_memory_gib"], tokens))
    return listed, refused


def generate(dest: Path, asked: argparse.Namespace, *pins: str) -> Path:
    request = {"--model": asked.model, "--data": asked.data, "--eval": "none", "--max-steps": str(asked.planned_steps)}
    request |= {"--global-batch": str(asked.batch)} | ASKED[asked.work]
    request |= {"--hardware": asked.hardware} if asked.hardware else {}
    words = [word for pair in request.items() for word in pair] + [word for pin in pins for word in ("--pin", pin)]
    command = [sys.executable, "-m", "generator.cli", "init", str(dest), *words, "--no-smoke", "--offline", "-q"]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True)
    return dest


def read_plan(project: Path) -> dict:
    return json.loads((project / "plan.json").read_text(encoding="utf-8"))


def run(alternative: Alternative, result: Path, steps: int) -> dict:
    """CPU seconds and loss of each step, GiB at the peak."""
    output = result.with_suffix("")
    flags = ("--output_dir", str(output), "--save_strategy", "no", "--max_steps", str(steps), *alternative.flags)
    timed = time_program(alternative.folder, result, *flags)
    report = json.loads((output / "run.json").read_text(encoding="utf-8"))
    return timed | {name: report[name] for name in ("peak_memory_gib", "tokens_per_step")}


def describe(alternative: Alternative, planned_steps: int) -> dict:
    """Of a step the fastest of all rounds, as what is beside it on a shared machine only adds. ``ranked_seconds``: with what comes
    once, in the first steps, divided over those that were planned."""
    of_steps = [min(seconds) for seconds in zip(*(run["seconds"] for run in alternative.runs), strict=True)]
    mean = statistics.mean(of_steps[SETTLING:])
    once = max(0.0, sum(of_steps[:SETTLING]) - SETTLING * mean)
    step = mean * alternative.planned_tokens / alternative.runs[0]["tokens_per_step"]
    peak = statistics.median(run["peak_memory_gib"] for run in alternative.runs)
    return {
        "name": alternative.name,
        "step_seconds": step,
        "once_seconds": once,
        "ranked_seconds": step + once / planned_steps,
        "predicted_step_seconds": alternative.predicted_seconds,
        "time_error": alternative.predicted_seconds / step - 1,
        "peak_memory_gib": peak,
        "predicted_peak_memory_gib": alternative.predicted_gib,
        "memory_error": alternative.predicted_gib / peak - 1,
        "losses": alternative.runs[0]["losses"],
        "seconds": [run["seconds"] for run in alternative.runs],
    }


def print_table(row: dict) -> None:
    print(f"\n{row['work']}, {row['model']}: {row['choice']}")
    print(f"{'':28s} {'s a step':>9s} {'planned':>8s} {'off':>6s}   {'GiB':>5s} {'planned':>8s} {'off':>6s}")
    for one in sorted(row["alternatives"], key=lambda one: one["ranked_seconds"]):
        print(
            f"{one['name']:28s} {one['ranked_seconds']:9.3f} {one['predicted_step_seconds']:8.3f} {one['time_error']:6.1%}   "
            f"{one['peak_memory_gib']:5.2f} {one['predicted_peak_memory_gib']:8.2f} {one['memory_error']:6.1%}"
        )
    print(
        f"regret {row['regret']:.1%} over {len(row['alternatives']) - 1} alternatives, the fastest is {row['fastest']}"
    )


if __name__ == "__main__":
    main()
