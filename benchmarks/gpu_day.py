"""25 minutes with one GPU: emitted projects, training steps, generation and the cost model's terms, measured and predicted.

python benchmarks/gpu_day.py --prepare FOLDER --hardware 1xh200     here: models, data and projects for a machine elsewhere; with
                                                                    --smoke one for each technique too
python benchmarks/gpu_day.py --inputs FOLDER --out FILE.json        there: measure; what FILE has already is not run again
python benchmarks/gpu_day.py --predict FILE.json                    anywhere: the cost model of today beside what was measured
python benchmarks/gpu_day.py --table FILE.json
python benchmarks/gpu_day.py --dry-run --device cpu --rows 5        some of it with toy sizes: that it works on the day

Every measurement is a process with a time limit, most valuable first, until --seconds are over; FILE is written after each, so
that a killed day goes on where it was: what FILE has is not measured twice.
One that fails is a row with its error. Needs torch, transformers and accelerate of any recent version, and for the projects
what they import (trl, datasets, peft, liger-kernel); nothing is fetched and weights are random. --prepare needs perfgen.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.gpu.measurements import config_of, list_measurements, shrink, spread_kinds  # noqa: E402
from benchmarks.gpu.smoke import list_prepared, prepare_smoke  # noqa: E402
from hwdetect.machine.process import HeadAndTail, run_process  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
LIMITS = {"project": 240, "train": 90, "generate": 120, "smoke": 150}
TERM_SECONDS, COMPILED_SECONDS = 60, 240
KILLED = "killed"
LEAST_SECONDS = 15
"""of what is left, to begin a measurement at all"""
DISTRIBUTIONS = (
    *("torch", "transformers", "accelerate", "peft", "trl", "datasets", "bitsandbytes", "liger-kernel", "triton"),
    *("tokenizers", "huggingface-hub", "numpy"),
)

# --- a child: one measurement -----------------------------------------------------------------------------------------


def measure(row: dict, device: str, tiny: bool, work: Path, say: Callable[[dict], None]) -> None:
    """Call the row's function; ``say`` takes each partial result at once, because the process may be killed."""
    from benchmarks.gpu import runs, terms

    for run in row.get("runs", [None]):
        if row["kind"] in runs.MEASURES:
            one = row if run is None else {**row, "run": run}
            measured = guarded(lambda one=one: runs.MEASURES[row["kind"]](one, device, tiny, work))
        else:
            measured = guarded(lambda run=run: terms.MEASURES[row["kind"]](run, device))
        say(measured if run is None else {"run": run, **measured})
        runs.forget_peak(device)


def guarded(work: Callable[[], dict]) -> dict:
    """What was measured, or why it could not be: the next run may still go well."""
    import traceback

    try:
        return {"measured": work()}
    except Exception:  # a failure is a result here
        return {"error": public(last_lines(traceback.format_exc()))}


def describe_machine() -> dict:
    """Names, sizes and versions: nothing that tells one machine of a kind from another."""
    import torch

    from hwdetect import detect

    seen = detect()
    cores = min(n for n in (seen.cpu.budget, seen.cpu.cores) if n)
    host = min(n for n in (seen.memory.total_bytes, seen.memory.limit_bytes) if n)
    versions = {name: version for name in DISTRIBUTIONS if (version := version_of(name))}
    software = {"python": platform.python_version(), "cuda": torch.version.cuda, **versions}
    here = {"cpu": seen.cpu.model_name, "cores": cores, "host_memory_bytes": host, "versions": software}
    if not torch.cuda.is_available():
        return {"device": "cpu", "name": seen.cpu.model_name, "memory_bytes": host, **here}
    board = torch.cuda.get_device_properties(0)
    return {
        "device": "cuda",
        "name": board.name,
        "memory_bytes": board.total_memory,
        "compute_capability": f"{board.major}.{board.minor}",
        "multiprocessors": board.multi_processor_count,
        "l2_bytes": board.L2_cache_size,
        "driver": seen.software.driver,
        **here,
    }


def version_of(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def last_lines(text: str, count: int = 25) -> str:
    return "\n".join(text.strip().splitlines()[-count:])


def public(text: str) -> str:
    """Without the folders of this machine: a module keeps its path inside its package."""
    text = re.sub(r"/[^\s\"']*/(site|dist)-packages/", "", text)
    for folder in (str(ROOT), tempfile.gettempdir(), str(Path.home()), platform.node()):
        text = text.replace(folder, "…") if len(folder) > 1 else text
    return re.sub(r"(?<![\w….])/(?:[\w.+@-]+/)+", "…/", text)


# --- the parent: one process per measurement --------------------------------------------------------------------------


def run_child(words: list[str], limit: float, work: Path) -> tuple[list[dict], str | None]:
    """What a child wrote, line by line, and what went wrong. One that runs too long ends with all that it started, and so does
    one whose parent is killed: nothing measures beside the next."""
    output = work / f"result-{os.getpid()}.jsonl"
    output.unlink(missing_ok=True)
    command = (sys.executable, str(Path(__file__).resolve()), *words, "--result", str(output))
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
    log = HeadAndTail(1 << 14, 1 << 16)
    ended = run_process(
        command, limit, errors=subprocess.STDOUT, environment=environment, folder=Path.cwd(), output=log
    )
    wrong = None
    if ended.problem or ended.code:
        reason = f"{KILLED} after {limit:.0f} s" if ended.code is None or ended.problem else f"exit code {ended.code}"
        wrong = f"{reason}\n{public(last_lines(ended.raw.decode(errors='replace')))}"
    lines = output.read_text(encoding="utf-8").splitlines() if output.exists() else []
    output.unlink(missing_ok=True)
    return [json.loads(line) for line in lines], wrong


def limit_of(row: dict) -> float:
    if row["kind"] not in LIMITS:
        return TERM_SECONDS
    return sum(
        COMPILED_SECONDS if run.get("compile") else LIMITS[row["kind"]] for run in row.get("runs", [row.get("run", {})])
    )


def run_all(file: Path, work: Path, rows: list[dict], seconds: float, tiny: bool) -> dict:
    """Measure what ``file`` does not have yet, until the time is over."""
    ends = time.monotonic() + seconds
    here = begin(work, tiny)
    if not file.exists():
        save(file, here)
    result = json.loads(file.read_text(encoding="utf-8"))
    if differing := list_differences(result, here):
        sys.exit(f"{file} was measured with another {' and '.join(differing)}: give another --out")
    on_gpu = result["machine"]["device"] == "cuda"
    done = {family(old) for old in result["rows"]} - {family(old) for old in result["rows"] if old.get("cut_short")}
    left = [row for row in rows if row["name"] not in done and (on_gpu or not row.get("needs_gpu"))]

    def keep(row: dict, new: list[dict], seconds: float) -> None:
        result["rows"] = [old for old in result["rows"] if family(old) != row["name"]] + new
        save(file, result)
        state = next((summary(r["error"]) for r in new if "error" in r), "ok")
        print(f"{row['name']}: {seconds:.0f} s, {state}", flush=True)

    if smoke := [row for row in left if row["kind"] == "smoke"]:
        for row, new, seconds in smoke_together(smoke, work, ends, result["machine"]["cores"]):
            keep(row, new, seconds)
    for row in left:
        if row["kind"] == "smoke":
            continue
        if (rest := ends - time.monotonic()) < LEAST_SECONDS:
            print(f"{row['name']}: no time left")
            continue
        started = time.monotonic()
        keep(row, run_one(row, rest, tiny, work), time.monotonic() - started)
    return result


def smoke_together(
    rows: list[dict], work: Path, ends: float, together: int
) -> Iterator[tuple[dict, list[dict], float]]:
    """Many at a time, for none of them is timed: in forks, or where CUDA does not start there, one new process each."""
    from benchmarks.gpu.forks import import_libraries, run_forked, run_rows
    from benchmarks.gpu.runs import run_script
    from benchmarks.gpu.smoke import measure_smoke

    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    run = run_script if import_libraries() else run_forked
    folder = work / "smoke"
    folder.mkdir(exist_ok=True)

    def measure(row: dict) -> dict:
        return guarded(lambda: measure_smoke(row, work, run))

    for row, new in run_rows(rows, together, measure, folder, ends, LIMITS["smoke"]):
        error = (new.get("measured") or {}).pop("error", None)
        seconds = (new.get("measured") or {}).get("seconds", 0.0)
        yield row, [{**row, **new, **({"error": public(error)} if error else {})}], seconds


def run_one(row: dict, left: float, tiny: bool, work: Path) -> list[dict]:
    """The rows of one measurement. One that the end of the time cut short is marked, and run again by the next call."""
    limit = min(left, limit_of(row))
    words = ["--one", row["name"], "--work", str(work), *(["--dry-run"] if tiny else [])]
    got, wrong = run_child(words, limit, work)
    new = [*finish(row, got, wrong, work)]
    if wrong and wrong.startswith(KILLED) and limit < limit_of(row):
        new[-1]["cut_short"] = True
    return new


def summary(error: str) -> str:
    """The line that says most: what killed the process, or the last of a traceback."""
    lines = error.strip().splitlines()
    return (lines[0] if lines[0].startswith(KILLED) else lines[-1])[:110]


def begin(work: Path, tiny: bool) -> dict:
    machine, wrong = run_child(["--describe", "--work", str(work)], 120, work)
    if not machine:
        sys.exit(f"the machine could not be described: {wrong}")
    return {
        "schema": 1,
        "what": "one device: emitted projects, Trainer steps, generation and kernels, beside the cost model's prediction",
        "date": datetime.date.today().isoformat(),
        "command": "python benchmarks/gpu_day.py" + (" --dry-run" if tiny else ""),
        "tiny": tiny,
        "machine": machine[0],
        "rows": [],
    }


def list_differences(result: dict, here: dict) -> list[str]:
    """What rows of one file must have in common: a file says it once."""
    old, new = result["machine"], here["machine"]
    names = [name for name in ("device", "name", "versions") if old[name] != new[name]]
    return names + ([] if result["tiny"] == here["tiny"] else ["--dry-run"])


def family(row: dict) -> str:
    return row.get("family", row["name"])


def finish(row: dict, got: list[dict], wrong: str | None, work: Path) -> Iterator[dict]:
    """The rows of a measurement: its settings with what came back, and an error where something is missing."""
    if row["kind"] == "project":
        row = {**row, **planned(work / "inputs" / row["project"])}
    settings = {key: value for key, value in row.items() if key not in ("runs", "needs_gpu")}
    for number, part in enumerate(got):
        name = {"name": f"{row['name']}/{number}", "family": row["name"]} if "runs" in row else {}
        error = (part.get("measured") or {}).pop("error", None)
        yield {**settings, **name, **part, **({"error": public(error)} if error else {})}
    if wrong or not got:
        yield {**settings, "error": wrong or "wrote nothing"}


def planned(inputs: Path) -> dict:
    """The plan's own estimate and choice, which are the prediction for a project."""
    path = inputs / "project" / "plan.json"
    if not path.exists():
        return {}
    plan = json.loads(path.read_text(encoding="utf-8"))
    kept = ("step_seconds", "tokens_per_second", "allocator_peak_gib", "peak_memory_gib", "memory_gib", "time_seconds")
    batch = {key: plan["batch"][key] for key in ("micro_batch", "accumulation")}
    return {"choice": plan["choice"], "batch": batch, "plan": {key: plan["estimate"][key] for key in kept}}


def save(file: Path, result: dict) -> None:
    draft = file.with_name(f"{file.name}.tmp")
    draft.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    draft.replace(file)


# --- predicted beside measured ----------------------------------------------------------------------------------------


def add_predictions(result: dict) -> None:
    """Into each row: what the cost model says today, and predicted over measured."""
    from benchmarks.gpu.predict import Predictor, compare

    try:
        predictor = Predictor(result["machine"])
    except LookupError as error:
        print(f"nothing predicted: {error}")
        return
    for row in result["rows"]:
        if row["kind"] == "smoke" or (row["kind"] != "project" and "run" not in row):
            continue
        row["predicted"] = predictor.predict(row, config_of(row["model"], result["tiny"]) if "model" in row else None)
        row["predicted_over_measured"] = compare(row)


def print_table(result: dict) -> None:
    machine = result["machine"]
    print(f"\n{machine['name']}, torch {machine['versions'].get('torch')}, {result['date']}: predicted over measured")
    for row in result["rows"]:
        ratios = row.get("predicted_over_measured") or {}
        shown = "  ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
        settings = ",".join(str(v) for v in row["run"].values()) if "family" in row else ""
        error = summary(row["error"]) if "error" in row else ""
        print(f"{row['name']:34} {settings:34} {shown}{error}")


# --- command line -----------------------------------------------------------------------------------------------------


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prepare", type=Path, help="write inputs there and stop")
    parser.add_argument(
        "--smoke", action="store_true", help="with --prepare: a project for every technique too (minutes)"
    )
    parser.add_argument("--hardware", help="of the machine to prepare for; default: the one that is here")
    parser.add_argument("--inputs", type=Path, help="what --prepare wrote")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=1500)
    parser.add_argument("--rows", type=int, help="no more measurements than so many, of as many kinds as there are")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: the GPU, if there is one")
    parser.add_argument("--only", nargs="*", default=[], help="names, or how they begin: train/8b terms")
    parser.add_argument("--dry-run", action="store_true", dest="tiny", help="toy sizes: numbers that say nothing")
    parser.add_argument("--predict", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--work", type=Path, help="folder for weights and projects")
    for hidden in ("--one", "--result"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--describe", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def select(only: list[str], tiny: bool, most: int | None = None) -> list[dict]:
    rows = [row for row in list_measurements() if not only or row["name"].startswith(tuple(only))]
    rows = rows if most is None else spread_kinds(rows)[:most]
    return [shrink(row) for row in rows] if tiny else rows


def be_child(args: argparse.Namespace) -> None:
    def say(part: dict) -> None:
        with Path(args.result).open("a", encoding="utf-8") as file:
            file.write(json.dumps(part) + "\n")

    if args.describe:
        return say(describe_machine())
    import torch

    row = next(row for row in select([args.one], args.tiny) if row["name"] == args.one)
    measure(row, "cuda" if torch.cuda.is_available() else "cpu", args.tiny, args.work, say)


def prepare_projects(folder: Path, hardware: str | None, tiny: bool, rows: list[dict]) -> None:
    projects = [row for row in rows if row["kind"] == "project"]
    if projects:
        from benchmarks.gpu.inputs import prepare

        prepare(folder, hardware, tiny, projects)


def repeat_prediction(file: Path) -> None:
    result = json.loads(file.read_text(encoding="utf-8"))
    add_predictions(result)
    save(file, result)
    print_table(result)


def measure_here(args: argparse.Namespace, work: Path) -> None:
    rows = select(args.only, args.tiny, args.rows)
    inputs = work / "inputs"
    (work / "weights").mkdir(parents=True, exist_ok=True)
    if args.inputs and not inputs.exists():
        inputs.symlink_to(args.inputs.resolve())
    if not args.inputs:
        prepare_projects(inputs, args.hardware, args.tiny, rows)
    prepared = list_prepared(inputs / "smoke") if args.rows is None else []
    rows = [row for row in prepared if not args.only or row["name"].startswith(tuple(args.only))] + rows
    if not rows:
        names = " ".join(row["name"] for row in select([], False))
        sys.exit(
            f"--only or --rows leaves nothing to measure; names: {names}, and smoke/ of what --prepare --smoke wrote"
        )
    if args.device == "cuda" and not Path("/dev/nvidiactl").exists():
        sys.exit("--device cuda: there is no NVIDIA GPU here")
    file = args.out or (work / "tiny.json" if args.tiny else RESULTS / "gpu_day.json")
    run_all(file, work, rows, args.seconds, args.tiny)
    repeat_prediction(file)


def main() -> None:
    args = parse()
    if args.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # of the children too
    if args.one or args.describe:
        be_child(args)
    elif args.prepare:
        if not args.hardware:
            sys.exit("--prepare needs --hardware: the machine that will measure, as in 1xh200")
        prepare_projects(args.prepare, args.hardware, args.tiny, select(args.only, args.tiny))
        if args.smoke:
            prepare_smoke(args.prepare / "smoke", args.hardware, args.only)
    elif args.predict:
        repeat_prediction(args.predict)
    elif args.table:
        print_table(json.loads(args.table.read_text(encoding="utf-8")))
    elif args.work:
        measure_here(args, args.work)
    else:
        with tempfile.TemporaryDirectory() as folder:
            measure_here(args, Path(folder))


if __name__ == "__main__":
    main()
