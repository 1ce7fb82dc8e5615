"""Wall time of whole perfgen commands, as a ratio to `python -c pass` taken in turn with them.

python benchmarks/startup.py [--repeats 15]      writes benchmarks/results/startup.json

--peer PATH times NVIDIA's aiconfigurator (pip install aiconfigurator, in an environment of its own) on the question that both
can answer, in turn with perfgen: Llama-3.1-70B served on eight H200.
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
    "plan, sample model, this machine": ["plan", "--sample"],
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
    "plan, 8B on eight A100": ["plan", "--model", str(MODEL), "--from-scratch", "--hardware", "8xa100-sxm-80gb"],
    "plan, 8B on 10,000 H100": [
        "plan",
        "--model",
        str(MODEL),
        "--from-scratch",
        "--global-batch",
        "10000",
        "--hardware",
        "1250x8xh100-sxm-80gb",
    ],
}
SERVED = HERE.parent / "examples" / "models" / "llama-3.1-70b.json"
QUESTION = ["plan", "--model", str(SERVED), "--mode", "infer", "--hardware", "8xh200-sxm-141gb"]
PEER = ["cli", "default", "--model-path", "meta-llama/Meta-Llama-3.1-70B", "--total-gpus", "8", "--system", "h200_sxm"]
PEER_REPEATS = 3


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


def beside(peer: str) -> dict:
    """Both planners on the same question, in turn; the ratio is the peer's time over ours."""
    ours, theirs = [sys.executable, "-m", "generator.cli", *QUESTION], [peer, *PEER]
    seconds(ours)
    pairs = [(seconds(ours), seconds(theirs)) for _ in range(PEER_REPEATS)]
    return {
        "peer": "aiconfigurator " + " ".join(PEER),
        "seconds": [round(a, 3) for a, _ in pairs],
        "peer_seconds": [round(b, 3) for _, b in pairs],
        "median_ratio": round(statistics.median(b / a for a, b in pairs), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--peer", help="the program aiconfigurator")
    arguments = parser.parse_args()
    rows = measure(arguments.repeats)
    file = HERE / "results" / "startup.json"
    before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    peer = beside(arguments.peer) if arguments.peer else before.get("beside a peer")
    result = {
        "schema": 1,
        "what": "wall time of the whole process",
        "baseline": "python -c pass, in turn",
        "device": f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}",
        "rows": rows,
        "beside a peer": peer,
    }
    file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    for name, row in rows.items():
        print(f"{name:<36} {row['median_seconds']:.3f} s   {row['median_ratio_to_python_pass']:.1f} x python -c pass")
    if peer:
        print(f"{peer['median_ratio']} times as fast as {peer['peer']}")


if __name__ == "__main__":
    main()
