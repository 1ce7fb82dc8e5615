"""Greedy generation of one model on one thread of a CPU: eager, torch.compile, PyTorch/XLA, TensorFlow by XLA.

`python benchmarks/xla_cpu.py --model FOLDER --xla PYTHON --tensorflow PYTHON --out benchmarks/results/xla_cpu.json`

Each in a process of its own, in turn, ``--rounds`` times; each answers once to compile and ``--calls`` times for the figure. Seconds are
of the process's CPU time: another load on the machine takes them from none, though it slows caches and clocks. The tokens of all are
compared. A Llama is read by TensorFlow as a Mistral without a window, which is the same function: 4.57 has no Llama of TensorFlow's.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LEAVES = ROOT / "templates" / "fragments"
PROMPT = "The history of the city begins with a small settlement on the river, whose people lived from fishing and"
WAYS = ("eager", "torch-compile", "torch-xla", "tensorflow-xla")
LIMIT_SECONDS = 1500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--xla", default=sys.executable)
    parser.add_argument("--tensorflow", default=sys.executable)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--calls", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--way", choices=WAYS)
    args = parser.parse_args()
    if args.way:
        print(json.dumps(measure(args.way, args.model, args.new_tokens, args.calls)))
        return
    rows: dict[str, list[dict]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        mistral = write_mistral(args.model, Path(folder))
        for _ in range(args.rounds):
            for way in WAYS:
                python = {"torch-xla": args.xla, "tensorflow-xla": args.tensorflow}.get(way, sys.executable)
                model = mistral if way == "tensorflow-xla" else args.model
                rows[way].append(run(python, way, model, args))
                print(way, {k: v for k, v in rows[way][-1].items() if k != "tokens"}, flush=True)
    reference = rows["eager"][0]["tokens"]
    result = {
        "schema": 1,
        "what": "greedy generation of one prompt, fp32, one thread; seconds of CPU time",
        "model": args.model.name,
        "prompt_tokens": rows["eager"][0]["prompt_tokens"],
        "new_tokens": args.new_tokens,
        "load_average": [round(value, 1) for value in os.getloadavg()],
        "command": "python benchmarks/xla_cpu.py --model FOLDER --xla PYTHON --tensorflow PYTHON",
        "rows": [summarize(way, runs, reference, args.new_tokens) for way, runs in rows.items()],
    }
    if args.out:
        args.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))


def run(python: str, way: str, model: Path, args: argparse.Namespace) -> dict:
    command = [python, __file__, "--way", way, "--model", str(model), "--calls", str(args.calls)]
    one = dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "NPROC"), "1")
    environment = (
        os.environ
        | one
        | {"PJRT_DEVICE": "CPU", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "TF_USE_LEGACY_KERAS": "1"}
    )
    done = subprocess.run(
        [*command, "--new-tokens", str(args.new_tokens)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{way}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def write_mistral(source: Path, folder: Path) -> Path:
    """The same weights under the name of a model that Transformers 4.57 has in TensorFlow; its head is not tied there."""
    from safetensors.torch import load_file, save_file

    for path in source.glob("*.json*"):
        shutil.copy(path, folder)
    config = json.loads((source / "config.json").read_text())
    config |= {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": None}
    # 4.57 reads the base of the rotation from here, and takes 10,000 where it is not
    config.setdefault("rope_theta", (config.get("rope_parameters") or {}).get("rope_theta", 10000.0))
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    weights = {name: weight.float() for name, weight in load_file(source / "model.safetensors").items()}
    weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"].clone())
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def measure(way: str, model: Path, new_tokens: int, calls: int) -> dict:
    """One way, in this process."""
    sys.path[:0] = [str(LEAVES)]
    generate, prompt_tokens = MAKERS[way](model, new_tokens)
    seconds, walls, tokens = [], [], []
    for _ in range(1 + calls):
        cpu, wall = time.process_time(), time.perf_counter()
        tokens = generate()
        seconds.append(time.process_time() - cpu)
        walls.append(time.perf_counter() - wall)
    return {
        "first_call_cpu_seconds": seconds[0],
        "cpu_seconds": seconds[1:],
        "wall_seconds": walls[1:],
        "first_call_wall_seconds": walls[0],
        "prompt_tokens": prompt_tokens,
        "tokens": tokens,
    }


def load_torch(model: Path):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(model)
    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval(), tokenizer


def make_eager(model: Path, new_tokens: int, **options):
    loaded, tokenizer = load_torch(model)
    inputs = tokenizer(PROMPT, return_tensors="pt")
    length = inputs["input_ids"].shape[1]
    if options:
        import torch

        loaded.forward = torch.compile(loaded.forward)

    def generate() -> list[int]:
        exact = {"min_new_tokens": new_tokens, "max_new_tokens": new_tokens, "do_sample": False}
        return loaded.generate(**inputs, **exact, **options)[0, length:].tolist()

    return generate, length


def make_compiled(model: Path, new_tokens: int):
    return make_eager(model, new_tokens, cache_implementation="static")


def make_xla(model: Path, new_tokens: int):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    generator = load_leaf("xla/infer").Generator(
        AutoModelForCausalLM.from_pretrained(model, dtype="float32", attn_implementation="eager"), 32
    )
    prompt = AutoTokenizer.from_pretrained(model)(PROMPT)["input_ids"]
    return lambda: generator.generate(prompt, new_tokens, set()), len(prompt)


def make_tensorflow(model: Path, new_tokens: int):
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    from transformers import PreTrainedTokenizerFast

    sys.path[:0] = [str(LEAVES / "tensorflow")]
    from weights import load_model

    generator = load_leaf("tensorflow/infer").Generator(
        load_model(model), PreTrainedTokenizerFast.from_pretrained(model), 32
    )
    length = len(PreTrainedTokenizerFast.from_pretrained(model)(PROMPT)["input_ids"])
    return lambda: generator.generate(PROMPT, new_tokens)[0], length


MAKERS = {"eager": make_eager, "torch-compile": make_compiled, "torch-xla": make_xla, "tensorflow-xla": make_tensorflow}


def load_leaf(name: str):
    """A leaf as a module. The others that it imports stand beside it in a project: the configuration alone is made here."""
    import importlib.util

    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "infer.py"
        shutil.copy(LEAVES / f"{name}.py", copy)
        (Path(folder) / "config.yaml").write_text("{}")
        (Path(folder) / "machine.py").write_text("def peak_memory():\n    return {}\n")
        sys.path[:0] = [folder]
        spec = importlib.util.spec_from_file_location("leaf_infer", copy)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.path.remove(folder)
    return module


def summarize(way: str, runs: list[dict], reference: list[int], new_tokens: int) -> dict:
    seconds = [value for row in runs for value in row["cpu_seconds"]]
    return {
        "way": way,
        "first_call_cpu_seconds": [round(row["first_call_cpu_seconds"], 2) for row in runs],
        "first_call_wall_seconds": [round(row["first_call_wall_seconds"], 2) for row in runs],
        "cpu_seconds": [round(value, 3) for value in seconds],
        "wall_seconds": [round(value, 3) for row in runs for value in row["wall_seconds"]],
        "tokens_per_cpu_second": round(new_tokens / statistics.median(seconds), 1),
        "tokens_equal_eager": all(row["tokens"] == reference for row in runs),
    }


if __name__ == "__main__":
    main()
