"""Engines on this CPU beside transformers.pipeline() on the same weights, in turn, in environments of their own.

python tests/engines/environments.py HOME onnxruntime_genai openvino_genai llama_cpp ctranslate2
python benchmarks/engines.py --engines-home HOME --model SMOLLM2 --prepare     writes models, projects and converted weights, once
python benchmarks/engines.py --engines-home HOME --model SMOLLM2 --json benchmarks/results/engines_cpu.json

Projects are what perfgen emits; pipeline() with its defaults (in bf16 on weights saved so) stays loaded beside each engine, and they
compute one after the other, round by round. All of it ends after --within seconds: each configuration has its share of what is left.
What is measured already is not measured again (--again), so that the same command goes on; what is missing is said.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.engine_errors import show_figures
from benchmarks.engine_shapes import CONTEXT, PREFILL, PROMPT, PROMPTS, SHAPES

HERE = Path(__file__).resolve().parent
ENGINES = {
    "transformers": (None, None, ("float32", "bfloat16")),
    "onnxruntime-genai": ("serve-onnxruntime_genai", "convert-onnxruntime_genai", ("float32", "int8", "int4")),
    "openvino-genai": ("serve-openvino_genai", "convert-openvino_genai", ("float32", "bfloat16", "int8", "int4")),
    "llama-cpp": ("serve-llama_cpp", "convert-llama_cpp", ("float32", "int8", "int4")),
    "ctranslate2": ("serve-ctranslate2", "convert-ctranslate2", ("float32", "int8")),
}
"""Environment that serves (none: this one), that converts, and the formats of weights."""
PINS = {
    "float32": "precision=fp32",
    "bfloat16": "precision=bf16",
    "int8": "quantization=int8",
    "int4": "quantization=int4",
}
SMOLLM2, OWN = "smollm2-135m", "transformers"
ANSWER = 128
"""Tokens of an answer to a prompt of PREFILL, by whose seconds engines are judged."""
LEAST_SECONDS = 15.0
"""Loading two models, and a round: with less time left nothing is begun."""
CHOSEN = "chosen.json"
WHAT = (
    "engines on a CPU, each in turn with pipeline() on the same weights; best of the rounds, ratios the median of rounds. Of one thread: "
    "seconds of the process, which other work on the machine does not add to; of more: seconds of the clock, on a machine at rest"
)
BYTES, SIZE = 128 * 2**20, 1024
"""Copied and multiplied to know the machine."""
ENOUGH_SECONDS = 3.0
"""Of repeating one of these."""
PACKAGES = ("onnxruntime", "onnxruntime-genai", "openvino", "openvino-genai", "nncf", "torch", "transformers")

WORKER = """
import json, os, sys, time
from pathlib import Path
def read_peak_gib():
    # getrusage's maximum is at least that of the process which started this one; OpenVINO's steps have a process of their own
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    status = [Path(f"/proc/{pid}/status").read_text() for pid in ("self", *children)]
    return sum(int(text.split("VmHWM:")[1].split()[0]) for text in status if "VmHWM:" in text) / 2**20
begun = time.perf_counter()
project, kind = Path(sys.argv[1]), sys.argv[2]
sys.path.insert(0, str(project))
if kind == "pipeline":
    import torch, transformers
    torch.set_num_threads(int(sys.argv[4]))
    # defaults, on weights that are saved in this format
    pipe = transformers.pipeline("text-generation", model=sys.argv[3], dtype=getattr(torch, sys.argv[5]))
    one = "the"
    def answer(count, prompt, new):
        text = " ".join(["the"] * prompt)
        for _ in range(count):
            made = pipe(text, max_new_tokens=new, min_new_tokens=new, do_sample=False, return_full_text=False)
    def close(): pass
else:
    import yaml
    from engine import Engine
    from sampling import Sampling
    running = Engine(yaml.safe_load((project / "config.yaml").read_text()), project)
    def answer(count, prompt, new):
        made = running.generate([[260 + row, *[260] * (prompt - 1)] for row in range(count)], [Sampling(new, ends=False)] * count)
        assert [len(tokens) for tokens in made] == [new] * count
    close = running.close
print(json.dumps({"load_s": time.perf_counter() - begun}), flush=True)
for line in sys.stdin:
    count, prompt, new = json.loads(line)
    begun, busy = time.perf_counter(), time.process_time()
    answer(count, prompt, new)
    seconds = time.perf_counter() - begun
    print(json.dumps({"s": seconds, "busy_s": time.process_time() - busy, "gib": read_peak_gib()}), flush=True)
close()
"""


class Worker:
    """One engine in a process of its own, idle but when asked."""

    def __init__(self, python: Path, project: Path, kind: str, model: Path, threads: int, dtype: str = "") -> None:
        command = [str(python), "-c", WORKER, str(project), kind, str(model), str(threads), dtype]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.load_s = self.read()["load_s"]

    def read(self) -> dict:
        assert self.process.stdout
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        sys.exit(f"a worker ended with {self.process.wait()}")

    def time(self, count: int, prompt: int, new_tokens: int) -> dict:
        assert self.process.stdin
        self.process.stdin.write(json.dumps([count, prompt, new_tokens]) + "\n")
        self.process.stdin.flush()
        return self.read()

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def make_model(folder: Path, shape: str, tokenizer: Path) -> Path:
    """Random weights of a shape, with a tokenizer whose words are all in its vocabulary's first part."""
    if (folder / "model.safetensors").exists():
        return folder
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    qwen = shape.startswith("qwen")
    config = (Qwen2Config if qwen else LlamaConfig)(**SHAPES[shape], max_position_embeddings=8192)
    (Qwen2ForCausalLM if qwen else LlamaForCausalLM)(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)
    return folder


def make_project(folder: Path, engine: str, weights: str, model: Path, home: Path, args: argparse.Namespace) -> Path:
    """As perfgen emits it, its weights converted. What is there already is taken as it is."""
    if not folder.exists():
        asked = ["--concurrency", str(PROMPTS), "--prompt-tokens", str(PROMPT), "--new-tokens", str(args.new_tokens)]
        pins = ["--pin", f"engine={engine}", "--pin", PINS[weights]]
        command = [
            sys.executable,
            "-m",
            "generator.cli",
            "init",
            str(folder.resolve()),
            "--mode",
            "infer",
            "--no-smoke",
        ]
        command += ["--model", str(model.resolve()), *asked, *pins]
        subprocess.run(command, check=True, cwd=HERE.parent, stdout=sys.stderr)
    set_threads(folder, args.threads)
    if converting := ENGINES[engine][1]:
        begun = time.perf_counter()
        subprocess.run([home / converting / "bin" / "python", "convert.py"], cwd=folder, check=True, stdout=sys.stderr)
        print(f"{folder.name}: converted in {time.perf_counter() - begun:.0f} s", file=sys.stderr)
    return folder


def find_python(engine: str, home: Path) -> Path:
    environment = ENGINES[engine][0] if engine in ENGINES else None
    return home / environment / "bin" / "python" if environment else Path(sys.executable)


def time_round(worker: Worker, new_tokens: int, prompts: int, clock: str) -> dict:
    """Tokens per second of a prompt, of an answer behind one, and of several answers together."""
    first, answer = worker.time(1, PROMPT, 1), worker.time(1, PROMPT, new_tokens)
    prefill = worker.time(1, PREFILL, 1)
    read, together = first, answer
    if prompts > 1:
        read, together = worker.time(prompts, PROMPT, 1), worker.time(prompts, PROMPT, new_tokens)
    return {
        "decode_tokens_per_s": (new_tokens - 1) / (answer[clock] - first[clock]),
        "first_token_s": first[clock],
        "prefill_tokens_per_s": PREFILL / prefill[clock],
        "decode_together_tokens_per_s": prompts * (new_tokens - 1) / (together[clock] - read[clock]),
        "throughput_tokens_per_s": prompts * new_tokens / together[clock],
        "one_prompt_tokens_per_s": new_tokens / answer[clock],
        "peak_gib": together["gib"],
    }


def measure_machine(threads: int) -> dict[str, float]:
    """What ``perfgen detect --measure`` times, on as many threads; on one by its own seconds, which others' work does not add to."""
    import torch

    torch.set_num_threads(threads)
    source = torch.ones(BYTES, dtype=torch.uint8)
    target = torch.empty_like(source)
    rates = {"host_memory_bandwidth": 2 * BYTES / time_best(lambda: target.copy_(source), threads)}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        a, b = (torch.randn(SIZE, SIZE).to(dtype) for _ in range(2))
        rates[name] = 2 * SIZE**3 / time_best(lambda a=a, b=b: a @ b, threads)
    return rates


def time_best(work: Callable[[], object], threads: int) -> float:
    clock = time.process_time if threads == 1 else time.perf_counter
    best, enough = math.inf, time.perf_counter() + ENOUGH_SECONDS
    for _ in range(20):
        begun = clock()
        work()
        best = min(best, clock() - begun)
        if time.perf_counter() > enough:  # a product of bf16 without instructions for it takes seconds
            break
    return best


def list_versions(python: Path) -> dict[str, str]:
    code = "import json,sys;from importlib.metadata import distributions as d;print(json.dumps({x.name:x.version for x in d()}))"
    versions = json.loads(subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout)
    return {name: versions[name] for name in PACKAGES if name in versions}


def count_weight_bytes(folder: Path) -> int:
    """Of files of weights; all are read for a token, save an embedding that is not the head's too."""
    names = ("*.safetensors", "*.onnx.data", "openvino_model.bin", "model.gguf", "model.bin")
    return sum(path.stat().st_size for name in names for path in folder.glob(name))


def main() -> None:
    args = parse_arguments()
    home, work, end = args.engines_home.resolve(), args.work.resolve(), time.monotonic() + args.within
    kept = json.loads(args.json.read_text()) if args.json.exists() else {}
    rows, wanted = kept.get("rows", []), list_configurations(args)
    models = {shape: find_model(shape, work, args) for shape, _, _ in wanted}
    if args.prepare:
        prepare(wanted, models, home, work, args)
        return
    done = {} if args.again else {name_row(row) for row in rows if row.get("new_tokens") == args.new_tokens}
    todo = [each for each in wanted if (*each, args.threads) not in done and is_prepared(work, *each)]
    for number, (shape, engine, weights) in enumerate(todo):
        left = end - time.monotonic()
        if left < LEAST_SECONDS:
            break
        print(f"{number + 1}/{len(todo)} {shape} {engine} {weights}, {left:.0f} s left", file=sys.stderr, flush=True)
        until = time.monotonic() + left / (len(todo) - number)
        project = work / name_folder(shape, engine, weights)
        set_threads(project, args.threads)
        try:
            row = measure(shape, engine, weights, project, models[shape], home, args, until)
        except SystemExit as error:  # of a worker, whose own words stand above: the others are measured
            print(f"{project.name}: {error}", file=sys.stderr)
            continue
        rows = [old for old in rows if name_row(old) != name_row(row)] + [row]
        write(args.json, rows, work)
    write(args.json, rows, work)
    show(rows, args.threads)
    show_figures([row for row in rows if row["machine"]["threads"] == args.threads])
    measured = {name_row(row) for row in rows}
    if missing := [each for each in wanted if (*each, args.threads) not in measured]:
        unprepared = sum(not is_prepared(work, *each) for each in missing)
        print(
            f"not measured: {len(missing)} ({unprepared} of them not prepared, see --prepare); the same command goes on"
        )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines-home", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True, help="SmolLM2-135M-Instruct in fp32")
    parser.add_argument("--work", type=Path, default=Path("engines-work"), help="models and converted weights")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "engines_cpu.json")
    parser.add_argument("--shapes", nargs="*", default=[SMOLLM2, *SHAPES])
    parser.add_argument("--engines", nargs="*", default=list(ENGINES))
    parser.add_argument("--weights", nargs="*", help="formats; default: all that an engine has here")
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=5, help="rounds at most")
    parser.add_argument("--within", type=float, default=720.0, help="seconds of all measuring")
    parser.add_argument("--prepare", action="store_true", help="only write what is measured: minutes, once")
    parser.add_argument("--again", action="store_true", help="measure what is in the file, too")
    parser.add_argument(
        "--threads",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="1: times are a process's own seconds, which stay the same on a machine with other work",
    )
    return parser.parse_args()


def list_configurations(args: argparse.Namespace) -> list[tuple[str, str, str]]:
    """Model, engine, weights; what only one engine has comes last."""
    return [
        (shape, engine, weights)
        for shape in args.shapes
        for engine in args.engines
        for weights in ENGINES[engine][2]
        if weights in (args.weights or ENGINES[engine][2]) and (weights != "bfloat16" or has_bfloat16())
    ]


def name_folder(shape: str, engine: str, weights: str) -> str:
    return f"{shape}-{engine}-{weights}"


def is_prepared(work: Path, shape: str, engine: str, weights: str) -> bool:
    project = work / name_folder(shape, engine, weights)
    written = "weights/converted.json" if ENGINES[engine][1] else "config.yaml"
    return (project / written).exists()


def find_model(shape: str, work: Path, args: argparse.Namespace) -> Path:
    return args.model if shape == SMOLLM2 else make_model(work / shape, shape, args.model)


def prepare(
    wanted: list[tuple[str, str, str]], models: dict[str, Path], home: Path, work: Path, args: argparse.Namespace
) -> None:
    """Projects and converted weights; and which engine a plan takes of each model and format."""
    work.mkdir(parents=True, exist_ok=True)
    for number, (shape, engine, weights) in enumerate(wanted):
        print(f"{number + 1}/{len(wanted)} {shape} {engine} {weights}", file=sys.stderr, flush=True)
        folder = work / name_folder(shape, engine, weights)
        try:
            make_project(folder, engine, weights, models[shape], home, args)
        except subprocess.CalledProcessError as error:
            print(
                f"{folder.name}: not prepared, {Path(error.cmd[0]).name} ended with {error.returncode}", file=sys.stderr
            )
    path = work / CHOSEN
    chosen = json.loads(path.read_text()) if path.exists() else {}
    for shape, weights in dict.fromkeys((shape, weights) for shape, _, weights in wanted):
        if f"{shape} {weights}" not in chosen:
            chosen[f"{shape} {weights}"] = find_chosen_engine(models[shape], weights, work / "plan")
            path.write_text(json.dumps(chosen, indent=1) + "\n")


def find_chosen_engine(model: Path, weights: str, folder: Path) -> str:
    """What perfgen takes for one user's answers where the format is said, and no engine."""
    import shutil

    import yaml

    shutil.rmtree(folder, ignore_errors=True)
    command = [
        sys.executable,
        "-m",
        "generator.cli",
        "init",
        str(folder),
        "--mode",
        "infer",
        "--no-smoke",
        "--concurrency",
        "1",
    ]
    command += ["--model", str(model.resolve()), "--optimize-for", "latency", "--pin", PINS[weights]]
    command += ["--prompt-tokens", str(PREFILL), "--new-tokens", str(ANSWER)]
    if subprocess.run(command, cwd=HERE.parent, stdout=sys.stderr).returncode:
        return "none"
    return yaml.safe_load((folder / "config.yaml").read_text())["serving"]["engine"]


def set_threads(project: Path, threads: int) -> None:
    import yaml

    config = yaml.safe_load((project / "config.yaml").read_text())
    config["serving"] |= {"max_context": CONTEXT, "threads": threads, "max_concurrency": PROMPTS}
    (project / "config.yaml").write_text(yaml.safe_dump(config))


def write(path: Path, rows: list[dict], work: Path) -> None:
    share_rates(rows)
    chosen = json.loads((work / CHOSEN).read_text()) if (work / CHOSEN).exists() else {}
    content = {"schema": 1, "what": WHAT, "command": " ".join(sys.argv[1:]), "rows": rows}
    content |= {"ablation": list_steps(rows), "chosen": judge_choices(rows, chosen)}
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(content, indent=1) + "\n")
    draft.replace(path)


def share_rates(rows: list[dict]) -> None:
    """What a machine can do is the best of what was seen of it beside all rows: others' work comes and goes."""
    machines: dict[tuple, list[dict]] = {}
    for row in rows:
        machines.setdefault((row["machine"]["cpu"], row["machine"]["threads"]), []).append(row)
    for same in machines.values():
        rates = {name: max(row["machine"]["best"][name] for row in same) for name in same[0]["machine"]["best"]}
        for row in same:
            row["machine"]["best"] = dict(rates)
            read = row["best"]["decode_tokens_per_s"] * row["weight_bytes"]
            row["best_share_of_bandwidth"] = read / rates["host_memory_bandwidth"]


def judge_choices(rows: list[dict], chosen: dict[str, str]) -> list[dict]:
    """Of each model and format: the engine that a plan takes, the fastest of those measured, and whether the first is as
    fast to a tenth. Of rows with as many threads."""
    choices = []
    for (model, weights, threads), group in group_rows(rows).items():
        rates = {row["engine"]: 1 / time_answer(row["best"]) for row in group}
        taken, fastest = chosen.get(f"{model} {weights}"), max(rates, key=lambda engine: rates[engine])
        share = rates[taken] / rates[fastest] if taken in rates else None
        choices.append(
            {"model": model, "weights": weights, "threads": threads, "chosen": taken, "fastest": fastest}
            | {"share_of_fastest": share, "within_a_tenth": None if share is None else share >= 0.9}
        )
    return choices


def time_answer(best: dict) -> float:
    """Seconds of one, its prompt and its tokens."""
    return PREFILL / best["prefill_tokens_per_s"] + ANSWER / best["decode_tokens_per_s"]


def group_rows(rows: list[dict]) -> dict[tuple[str, str, int], list[dict]]:
    groups: dict[tuple[str, str, int], list[dict]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["weights"], row["machine"]["threads"]), []).append(row)
    return groups


def list_steps(rows: list[dict]) -> list[dict]:
    """What each change brings alone, tokens per second over those before it: this project's decoding in the place of generate(), its
    compiler or another engine, fewer bits, more prompts together."""
    groups, steps = group_rows(rows), []
    for (model, weights, threads), group in groups.items():
        rates = {row["engine"]: row["best"]["decode_tokens_per_s"] for row in group}
        for row in group:
            step = {"model": model, "threads": threads, "weights": weights, "engine": row["engine"]}
            plain = next((r for r in groups.get((model, "float32", threads), []) if r["engine"] == row["engine"]), None)
            step["over_pipeline"] = row["ratio"]["decode_tokens_per_s_to_pipeline"]
            step["engine_over_transformers"] = rates[row["engine"]] / rates[OWN] if OWN in rates else None
            step["format_over_float32"] = rates[row["engine"]] / plain["best"]["decode_tokens_per_s"] if plain else None
            together = row["best"]["decode_together_tokens_per_s"]
            step[f"{PROMPTS}_prompts_over_one"] = together / rates[row["engine"]]
            steps.append(step)
    return steps


def name_row(row: dict) -> tuple:
    return row["model"], row["engine"], row["weights"], row["machine"]["threads"]


def measure(
    shape: str,
    engine: str,
    weights: str,
    project: Path,
    model: Path,
    home: Path,
    args: argparse.Namespace,
    until: float,
) -> dict:
    """One engine and pipeline() in turn, both loaded all the while: one round, and more until ``until``."""
    dtype = weights if weights == "bfloat16" else "float32"
    baseline = Worker(Path(sys.executable), project, "pipeline", model, args.threads, dtype)
    worker = Worker(find_python(engine, home), project, "engine", model, args.threads)
    for each in (baseline, worker):
        each.time(1, PROMPT, 4)  # warms up
    alone = worker.time(1, PROMPT, args.new_tokens)["gib"]
    clock = "busy_s" if args.threads == 1 else "s"
    loads, machines, rounds, plain = [], [], [], []
    longest = 0.0
    while len(rounds) < args.repeats and (not rounds or time.monotonic() + longest < until):
        begun = time.monotonic()
        machines.append(measure_machine(args.threads))
        loads.append(os.getloadavg()[0])
        plain.append(time_round(baseline, args.new_tokens, 1, clock))
        rounds.append(time_round(worker, args.new_tokens, PROMPTS, clock))
        longest = max(longest, time.monotonic() - begun)
        print(" ", json.dumps({k: round(v, 2) for k, v in rounds[-1].items()}), file=sys.stderr, flush=True)
    for each in (baseline, worker):
        each.close()
    machine = {name: max(each[name] for each in machines) for name in machines[0]}
    machine = {
        "cpu": read_cpu(),
        "threads": args.threads,
        "best": machine,
        "load": loads,
        "instructions": list_instructions(),
    }
    weight_bytes = count_weight_bytes(model if engine == OWN else project / "weights")
    weight_bytes /= 2 if weights == "bfloat16" and engine == OWN else 1
    return (
        {"model": shape, "engine": engine, "weights": weights, "versions": list_versions(find_python(engine, home))}
        | {"weight_bytes": weight_bytes, "load_s": worker.load_s, "pipeline_load_s": baseline.load_s}
        | {"new_tokens": args.new_tokens, "rounds": len(rounds), "machine": machine, "step": read_step(project)}
        | {"peak_gib_of_one_prompt": alone, "pipeline": take_best(plain)}
        | summarize(rounds, plain, weight_bytes, machine["best"]["host_memory_bandwidth"])
    )


def list_instructions() -> list[str]:
    """Of the processor, as hwdetect has them."""
    from hwdetect import detect

    return list(detect().cpu.isa_features or ())


def read_step(project: Path) -> str | None:
    """How Transformers computes the next token there; none: by its own forward pass, or another engine."""
    import yaml

    return yaml.safe_load((project / "config.yaml").read_text())["serving"].get("step")


def has_bfloat16() -> bool:
    """Instructions for it: without, it is slower than float32."""
    path = Path("/proc/cpuinfo")
    return path.exists() and bool({"avx512_bf16", "amx_bf16", "bf16"} & set(path.read_text().split()))


def take_best(repeats: list[dict]) -> dict:
    """What the machine does where nothing else runs for a moment: the highest rate, the least time."""
    return {
        name: (min if name.endswith("_s") and "per" not in name else max)(row[name] for row in repeats)
        for name in repeats[0]
    }


def summarize(repeats: list[dict], baseline: list[dict], weight_bytes: float, bandwidth: float) -> dict:
    """Best of the rounds, and ratios round by round, since the machine's other work comes and goes."""
    pairs = list(zip(repeats, baseline, strict=True))
    ratios = {
        f"{name}_to_pipeline": statistics.median(ours[name] / plain[name] for ours, plain in pairs)
        for name in ("decode_tokens_per_s", "prefill_tokens_per_s")
    }
    ratios["throughput_to_one_prompt_of_pipeline"] = statistics.median(
        ours["throughput_tokens_per_s"] / plain["one_prompt_tokens_per_s"] for ours, plain in pairs
    )
    best = take_best(repeats)
    share = best["decode_tokens_per_s"] * weight_bytes / bandwidth
    return {"repeats": repeats, "best": best, "ratio": ratios, "best_share_of_bandwidth": share}


def read_cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def find_default_prefill(rows: list[dict], row: dict) -> float:
    """Of pipeline() with nothing said, which computes weights saved in float32 in that: its best beside any engine, since in few of the
    windows the machine was its own; NaN where it was not measured."""
    rates = [
        other["pipeline"]["prefill_tokens_per_s"]
        for other in rows
        if (other["model"], other["machine"]["threads"]) == (row["model"], row["machine"]["threads"])
        and other["weights"] != "bfloat16"
    ]
    return max(rates, default=math.nan)


def show(rows: list[dict], threads: int) -> None:
    print(
        "x: beside pipeline() in turn, in bfloat16 where the engine's weights are; x32: a prompt beside its best in float32, the default"
    )
    columns = f"{'decode':>8}{'x':>6}{'prefill':>9}{'x':>6}{'x32':>6}{'8 prompts':>11}{'x':>6}{'GiB':>6}{'load':>7}{'first':>7}"
    print(f"{'model':14}{'engine':19}{'weights':10}{columns}  bandwidth; {threads} threads, tokens/s, s")
    for row in (row for row in rows if row["machine"]["threads"] == threads):
        best, ratio = row["best"], row["ratio"]
        print(
            f"{row['model']:14}{row['engine']:19}{row['weights']:10}{best['decode_tokens_per_s']:8.1f}"
            f"{ratio['decode_tokens_per_s_to_pipeline']:6.2f}{best['prefill_tokens_per_s']:9.0f}"
            f"{ratio['prefill_tokens_per_s_to_pipeline']:6.2f}"
            f"{best['prefill_tokens_per_s'] / find_default_prefill(rows, row):6.2f}{best['throughput_tokens_per_s']:11.1f}"
            f"{ratio['throughput_to_one_prompt_of_pipeline']:6.2f}{best.get('peak_gib', math.nan):6.2f}"
            f"{row['load_s']:7.1f}{best['first_token_s']:7.3f}{row['best_share_of_bandwidth']:11.0%}"
        )


if __name__ == "__main__":
    main()
