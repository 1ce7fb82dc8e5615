"""`perfgen detect --measure` repeated on a quiet machine and beside a load: figures that agree within 10 %, or are marked or not used.

python benchmarks/measure.py [--repeats 5] [--load N]      writes benchmarks/results/measure.json, and exits 1 where it is not so

Run it where nothing else computes. The load is one process a CPU that this one may use, unless ``--load`` says how many.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hwdetect.types import SAME_RATE

HERE = Path(__file__).resolve().parent
WITHIN = 0.1
LIMIT_SECONDS = 300
BURN = "while True: sum(range(100000))"
COMMAND = (sys.executable, "-m", "generator.cli", "detect", "--measure", "--json")


@contextmanager
def compute_beside(processes: int) -> Iterator[None]:
    """So many processes that compute meanwhile, ended with the block."""
    started = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def measure_once(load: int) -> dict:
    """The figures of one run by what they are of, and what the run said was not used."""
    with compute_beside(load):
        done = subprocess.run(
            COMMAND, capture_output=True, text=True, check=True, cwd=HERE.parent, timeout=LIMIT_SECONDS
        )
    measured = {name_figure(m): m for m in json.loads(done.stdout)["measured"]}
    return {
        "load": load,
        "figures": {name: m["value"] for name, m in measured.items()},
        "marked": sorted(name for name, m in measured.items() if (m.get("spread") or 0) > SAME_RATE),
        "not_used": [line.strip() for line in done.stderr.splitlines() if "is not used" in line],
    }


def name_figure(m: dict) -> str:
    return " ".join(str(part) for part in (m["what"], m.get("dtype"), m.get("size"), m["where"]) if part)


def list_names(runs: list[dict]) -> list[str]:
    return sorted({name for run in runs for name in run["figures"]})


def find_strays(runs: list[dict]) -> list[str]:
    """Figures that were given as such, unmarked, and lie farther than 10 % from the median of the quiet runs."""
    strays = []
    for name in list_names(runs):
        quiet = [run["figures"][name] for run in runs if not run["load"] and name in run["figures"]]
        middle = statistics.median(quiet or [run["figures"][name] for run in runs if name in run["figures"]])
        for number, run in enumerate(runs):
            value = run["figures"].get(name)
            if value is not None and name not in run["marked"] and abs(value - middle) > WITHIN * middle:
                strays.append(f"run {number} (load {run['load']}): {name} {value:.4g}, {value / middle - 1:+.0%}")
    return strays


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="runs of each kind")
    parser.add_argument("--load", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, default=HERE / "results" / "measure.json")
    arguments = parser.parse_args()
    runs: list[dict] = []
    # In turn, so that what changes on the machine meanwhile reaches both kinds.
    for load in (0, arguments.load) * arguments.repeats:
        before = os.getloadavg()[0]
        runs.append(measure_once(load) | {"load_average_before": round(before, 1)})
        shown = ", ".join(f"{name} {value:.4g}" for name, value in runs[-1]["figures"].items())
        marked = len(runs[-1]["marked"])
        print(f"load {load}: {shown or 'nothing'}; marked: {marked}; not used: {len(runs[-1]['not_used'])}", flush=True)
    strays = find_strays(runs)
    quiet = [run for run in runs if not run["load"]]
    result = {
        "schema": 1,
        "what": f"perfgen detect --measure, {arguments.repeats} times quiet and {arguments.repeats} times beside {arguments.load} "
        "processes, in turn",
        "machine": f"{len(os.sched_getaffinity(0))} CPUs, {platform.machine()}, Python {platform.python_version()}",
        "command": "python benchmarks/measure.py",
        "within": WITHIN,
        "medians_quiet": {
            name: statistics.median(run["figures"][name] for run in quiet if name in run["figures"])
            for name in list_names(quiet)
        },
        "strays": strays,
        "runs": runs,
    }
    arguments.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print("\n".join(strays) or "every figure is within 10 % of the quiet median, marked as unsteady, or not used")
    return 1 if strays or not list_names(quiet) else 0


if __name__ == "__main__":
    sys.exit(main())
