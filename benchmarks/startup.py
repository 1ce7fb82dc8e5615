"""Wall time of whole perfgen commands, as a ratio to `python -c pass` taken in turn with them.

python benchmarks/startup.py [--repeats 15]      writes benchmarks/results/startup.json
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODEL = HERE.parent / "examples" / "models" / "llama-3.1-8b.json"
COMMANDS = {
    "--help": ["--help"],
    "detect": ["detect"],
    "plan, sample model, this machine": ["plan"],
    "plan, 8B from scratch on one H100": [
        "plan",
        "--model",
        str(MODEL),
        "--from-scratch",
        "--hardware",
        "1xh100-sxm-80gb",
    ],
    "plan, 8B inference on one H100": [
        "plan",
        "--model",
        str(MODEL),
        "--mode",
        "infer",
        "--hardware",
        "1xh100-sxm-80gb",
    ],
}


def seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - started


def measure(repeats: int) -> dict:
    empty = [sys.executable, "-c", "pass"]
    rows = {}
    for name, arguments in COMMANDS.items():
        command = [sys.executable, "-m", "generator.cli", *arguments]
        seconds(command)  # writes the byte code
        pairs = [(seconds(command), seconds(empty)) for _ in range(repeats)]
        rows[name] = {
            "seconds": [round(a, 4) for a, _ in pairs],
            "median_seconds": round(statistics.median(a for a, _ in pairs), 4),
            "median_ratio_to_python_pass": round(statistics.median(a / b for a, b in pairs), 2),
        }
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    rows = measure(parser.parse_args().repeats)
    result = {
        "schema": 1,
        "what": "wall time of the whole process",
        "baseline": "python -c pass, in turn",
        "device": f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}",
        "rows": rows,
    }
    (HERE / "results" / "startup.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    for name, row in rows.items():
        print(f"{name:<36} {row['median_seconds']:.3f} s   {row['median_ratio_to_python_pass']:.1f} x python -c pass")


if __name__ == "__main__":
    main()
