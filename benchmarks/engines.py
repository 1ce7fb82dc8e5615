"""Engines on this CPU beside transformers.pipeline() on the same weights, in turn, in environments of their own.

python benchmarks/engines.py --engines-home DIR --model DIR [--work DIR] [--json benchmarks/results/engines_cpu.json]

DIR of --engines-home: ort (onnxruntime-genai, torch, transformers, onnx, onnx_ir), ov (openvino-genai, transformers, jinja2,
pyyaml), ovc (ov with torch and nncf, converts). All stay loaded, and compute one after the other, round by round.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
FRAGMENTS = HERE.parent / "templates" / "fragments"
SHARED = ("sources", "stop_tokens", "serving/prompts", "serving/sampling", "serving/scheduler")
SHARED = (*SHARED, "serving/engine_thread", "serving/converted_weights")
ENGINES = {
    "onnxruntime-genai": ("onnxruntime_genai", "ort", "ort"),
    "openvino-genai": ("openvino_genai", "ov", "ovc"),
}
"""Leaf, environment that serves, environment that converts."""
WEIGHTS = ("float32", "int8", "int4")
SHAPES = {
    "llama-87m": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 2048}
    | {"vocab_size": 32000},
    "qwen2.5-0.5b": {"hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2}
    | {"intermediate_size": 4864, "vocab_size": 151936, "tie_word_embeddings": True},
}
"""Random weights: speed does not depend on them."""
PROMPT, PREFILL, PROMPTS = 32, 512, 8
PACKAGES = ("onnxruntime", "onnxruntime-genai", "openvino", "openvino-genai", "nncf", "torch", "transformers")

WORKER = """
import json, resource, sys, time
from pathlib import Path
begun = time.perf_counter()
project, kind = Path(sys.argv[1]), sys.argv[2]
sys.path.insert(0, str(project))
if kind == "pipeline":
    import torch, transformers
    pipe = transformers.pipeline("text-generation", model=sys.argv[3])
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
    print(json.dumps({"s": seconds, "busy_s": time.process_time() - busy, "gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}), flush=True)
close()
"""


class Worker:
    """One engine in a process of its own, idle but when asked."""

    def __init__(self, python: Path, project: Path, kind: str, model: Path) -> None:
        command = [str(python), "-c", WORKER, str(project), kind, str(model)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
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


def make_project(folder: Path, engine: str, weights: str, model: Path, home: Path) -> Path:
    import yaml

    leaf, _, converting = ENGINES[engine]
    folder.mkdir(parents=True, exist_ok=True)
    for name in SHARED:
        shutil.copy(FRAGMENTS / f"{name}.py", folder)
    shutil.copy(FRAGMENTS / "engines" / f"{leaf}.py", folder / "engine.py")
    shutil.copy(FRAGMENTS / "conversions" / f"{leaf}.py", folder / "convert.py")
    serving = {"engine": engine, "weights": weights, "converted": "weights", "max_context": 1024}
    serving |= {"max_concurrency": PROMPTS, "threads": len(os.sched_getaffinity(0))}
    (folder / "config.yaml").write_text(yaml.safe_dump({"model": str(model.resolve()), "serving": serving}))
    begun = time.perf_counter()
    subprocess.run([home / converting / "bin" / "python", "convert.py"], cwd=folder, check=True, stdout=sys.stderr)
    print(f"{folder.name}: converted in {time.perf_counter() - begun:.0f} s", file=sys.stderr)
    return folder


def time_round(worker: Worker, new_tokens: int, prompts: int) -> dict:
    """Tokens per second of a prompt, of an answer behind one, and of several answers together."""
    first, answer = worker.time(1, PROMPT, 1), worker.time(1, PROMPT, new_tokens)
    prefill, together = worker.time(1, PREFILL, 1), worker.time(prompts, PROMPT, new_tokens)
    return {
        "decode_tokens_per_s": (new_tokens - 1) / (answer["s"] - first["s"]),
        "decode_tokens_per_busy_s": (new_tokens - 1) / (answer["busy_s"] - first["busy_s"]),
        "first_token_s": first["s"],
        "prefill_tokens_per_s": PREFILL / prefill["s"],
        "prefill_tokens_per_busy_s": PREFILL / prefill["busy_s"],
        "throughput_tokens_per_s": prompts * new_tokens / together["s"],
        "one_prompt_tokens_per_s": new_tokens / answer["s"],
        "peak_gib": together["gib"],
    }


def measure_bandwidth() -> dict:
    """What `perfgen detect --measure` says of this machine."""
    command = [sys.executable, "-m", "generator.cli", "detect", "--measure", "--json"]
    detected = json.loads(subprocess.run(command, capture_output=True, text=True, cwd=HERE.parent, check=True).stdout)
    rows = detected["measured"]
    return {row["what"] + (f"_{row['dtype']}" if row.get("dtype") else ""): row["value"] for row in rows}


def list_versions(python: Path) -> dict[str, str]:
    code = "import json,sys;from importlib.metadata import distributions as d;print(json.dumps({x.name:x.version for x in d()}))"
    versions = json.loads(subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout)
    return {name: versions[name] for name in PACKAGES if name in versions}


def count_weight_bytes(folder: Path) -> int:
    """Of files of weights; all are read for a token, save an embedding that is not the head's too."""
    names = ("*.safetensors", "*.onnx.data", "openvino_model.bin")
    return sum(path.stat().st_size for name in names for path in folder.glob(name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines-home", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True, help="SmolLM2-135M-Instruct in fp32")
    parser.add_argument("--work", type=Path, default=Path("engines-work"), help="models and converted weights")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "engines_cpu.json")
    parser.add_argument("--shapes", nargs="*", default=["smollm2-135m", *SHAPES])
    parser.add_argument("--engines", nargs="*", default=list(ENGINES))
    parser.add_argument("--weights", nargs="*", default=list(WEIGHTS))
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    home = args.engines_home.resolve()
    rows = json.loads(args.json.read_text())["rows"] if args.json.exists() else []
    machine = {"cpu": read_cpu(), "threads": len(os.sched_getaffinity(0)), "shared": "with other work, see load"}
    for shape in args.shapes:
        model = args.model if shape == "smollm2-135m" else make_model(args.work / shape, shape, args.model)
        workers = {("pipeline", "float32"): Worker(Path(sys.executable), args.work, "pipeline", model)}
        weights_of = {("pipeline", "float32"): model}
        for engine in args.engines:
            for weights in args.weights:
                project = make_project(args.work / f"{shape}-{engine}-{weights}", engine, weights, model, home)
                python = home / ENGINES[engine][1] / "bin" / "python"
                workers[engine, weights] = Worker(python, project, "engine", model)
                weights_of[engine, weights] = project / "weights"
        for worker in workers.values():
            worker.time(2, PROMPT, 4)  # warms up
        rounds: dict = {key: [] for key in workers}
        loads, bandwidths = [], []
        for _ in range(args.repeats):
            bandwidths.append(measure_bandwidth())
            loads.append(os.getloadavg()[0])
            for key, worker in workers.items():
                rounds[key].append(time_round(worker, args.new_tokens, 1 if key[0] == "pipeline" else PROMPTS))
                print(shape, *key, json.dumps({k: round(v, 2) for k, v in rounds[key][-1].items()}), file=sys.stderr)
        bandwidth = max(each["host_memory_bandwidth"] for each in bandwidths)
        for key, worker in workers.items():
            worker.close()
            python = Path(sys.executable) if key[0] == "pipeline" else home / ENGINES[key[0]][1] / "bin" / "python"
            rows = [row for row in rows if (row["model"], row["engine"], row["weights"]) != (shape, *key)]
            rows.append(
                {"model": shape, "engine": key[0], "weights": key[1], "versions": list_versions(python)}
                | {"weight_bytes": count_weight_bytes(weights_of[key]), "load_s": worker.load_s}
                | {"new_tokens": args.new_tokens, "machine": machine | {"load": loads, "measured": bandwidths}}
                | summarize(rounds[key], rounds["pipeline", "float32"], count_weight_bytes(weights_of[key]), bandwidth)
            )
        args.json.write_text(json.dumps({"command": " ".join(sys.argv[1:]), "rows": rows}, indent=1) + "\n")
    show(rows)


def summarize(repeats: list[dict], baseline: list[dict], weight_bytes: int, bandwidth: float) -> dict:
    """Medians and best of the rounds; ratios round by round, since the machine's other work comes and goes."""
    medians = {name: statistics.median(row[name] for row in repeats) for name in repeats[0]}
    names = ("decode_tokens_per_s", "prefill_tokens_per_s")
    ratios = {
        f"{name}_to_pipeline": statistics.median(
            ours[name] / plain[name] for ours, plain in zip(repeats, baseline, strict=True)
        )
        for name in names
    }
    ratios["throughput_to_one_prompt_of_pipeline"] = statistics.median(
        ours["throughput_tokens_per_s"] / plain["one_prompt_tokens_per_s"]
        for ours, plain in zip(repeats, baseline, strict=True)
    )
    best = max(row["decode_tokens_per_s"] for row in repeats)
    share = best * weight_bytes / bandwidth
    return {"repeats": repeats, "median": medians, "ratio": ratios, "best_share_of_bandwidth": share}


def read_cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def show(rows: list[dict]) -> None:
    print(
        f"{'model':14}{'engine':19}{'weights':9}{'decode':>8}{'x':>6}{'prefill':>9}{'x':>6}{'8 prompts':>11}{'x':>6}{'GiB':>6}"
    )
    for row in rows:
        middle, ratio = row["median"], row["ratio"]
        print(
            f"{row['model']:14}{row['engine']:19}{row['weights']:9}{middle['decode_tokens_per_s']:8.1f}"
            f"{ratio['decode_tokens_per_s_to_pipeline']:6.2f}{middle['prefill_tokens_per_s']:9.0f}"
            f"{ratio['prefill_tokens_per_s_to_pipeline']:6.2f}{middle['throughput_tokens_per_s']:11.1f}"
            f"{ratio['throughput_to_one_prompt_of_pipeline']:6.2f}{middle['peak_gib']:6.2f}"
        )


if __name__ == "__main__":
    main()
