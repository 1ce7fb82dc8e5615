"""Rows to tokens, as the data.py of a generated project makes them: against the tokenizer's own encode_batch.

python benchmarks/data_preparation.py MODEL --texts FILE.jsonl [--chats FILE.jsonl]
                                                          writes benchmarks/results/data_preparation.json

MODEL is a folder with a tokenizer, FILE has rows with a text (--texts; trained on as JSON lines and as a text file) or with
messages (--chats). encode_batch gets the same texts, a thousand at a time, with threads on all cores; those of conversations
as the chat template writes them. Both in processes of their own, one after the other in each round. The second preparation
of a round reads the cache. Each row has wall clock and CPU seconds: on a busy machine only the latter compare.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from flattened import name_processor

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
CLOCK = """
import json, resource, sys, time
def read_clock():
    own, others = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return time.perf_counter(), own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime
def tell(started, **more):
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    wall, cpu = (b - a for a, b in zip(started, read_clock()))
    print(json.dumps({"wall_seconds": wall, "cpu_seconds": cpu, "peak_gib": peak / 1048576, **more}))
import yaml
sys.path.insert(0, ".")
import data
from transformers import AutoTokenizer
config = yaml.safe_load(open("config.yaml"))
tokenizer = AutoTokenizer.from_pretrained(data.find_source(config, "model"))
def prepare():
    if hasattr(data, "cut_blocks"):
        return data.cut_blocks(data.load_texts(config), tokenizer, config["seq_len"])
    return data.tokenize_examples(data.load_examples(config), tokenizer, config["seq_len"], config["loss_on"])
"""
PREPARE = CLOCK + "started = read_clock(); rows = prepare(); tell(started, rows=len(rows))"
ENCODE = (
    CLOCK
    + """
if hasattr(data, "cut_blocks"):
    texts = data.load_texts(config)["text"][:]
    if str(data.find_source(config, "data")).endswith("txt"):
        texts = ["".join(texts[start : start + 1000]) for start in range(0, len(texts), 1000)]
else:
    from fields import unpack_conversation
    pairs = [unpack_conversation(example) for example in data.load_examples(config)]
    texts = [tokenizer.apply_chat_template(messages, tools=tools, tokenize=False) for messages, tools in pairs]
started, tokens = read_clock(), 0
for start in range(0, len(texts), 1000):
    encodings = tokenizer.backend_tokenizer.encode_batch(texts[start : start + 1000], add_special_tokens=False)
    tokens += sum(map(len, encodings))
tell(started, tokens=tokens, text_bytes=sum(len(text.encode()) for text in texts))
"""
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--texts")
    parser.add_argument("--chats")
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(Path(folder), asked, *source) for source in list_sources(Path(folder), asked)]
    result = {
        "schema": 1,
        "what": "data.py of generated projects against encode_batch on the same text",
        "device": f"{name_processor()}, {len(os.sched_getaffinity(0))} cores, other programs on them",
        "versions": {name: version(name) for name in ("tokenizers", "transformers", "datasets", "pyarrow")},
        "command": f"python benchmarks/data_preparation.py MODEL --texts FILE --chats FILE --rounds {asked.rounds}",
        "model": Path(asked.model).name,
        "rows": rows,
    }
    (HERE / "results" / "data_preparation.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def list_sources(folder: Path, asked: argparse.Namespace) -> list[tuple[str, str, str]]:
    """Name, file and task of each."""
    sources = []
    if asked.texts:
        lines = folder / "texts.txt"
        with Path(asked.texts).open(encoding="utf-8") as rows, lines.open("w", encoding="utf-8") as file:
            file.writelines(json.loads(row)["text"].rstrip("\n") + "\n" for row in rows)
        sources = [("texts, jsonl", asked.texts, "causal-lm"), ("texts, txt", str(lines), "causal-lm")]
    return sources + ([("chats, jsonl", asked.chats, "sft")] if asked.chats else [])


def measure(folder: Path, asked: argparse.Namespace, name: str, file: str, task: str) -> dict:
    """A row of one source, over all rounds."""
    project = folder / name.replace(", ", "-")
    words = ["--model", asked.model, "--data", file, "--task", task, "--eval", "none", "--no-smoke", "--offline", "-q"]
    command = [sys.executable, "-m", "generator.cli", "init", str(project), *words]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    prepared, cached, encoded = [], [], []
    for number in range(asked.rounds):
        cache = {"HF_DATASETS_CACHE": str(folder / f"cache-{project.name}-{number}")}
        encoded.append(run(project, ENCODE, {"HF_DATASETS_CACHE": str(folder / "texts")}))
        prepared.append(run(project, PREPARE, cache))
        cached.append(run(project, PREPARE, cache))
        print(f"{name}: encode_batch {encoded[-1]}, prepared {prepared[-1]}, again {cached[-1]}", flush=True)
    row = {"name": name, "text_mb": encoded[0]["text_bytes"] / 1e6, "encode_batch": encoded, "prepared": prepared}
    row["cached_seconds"] = statistics.median(run["wall_seconds"] for run in cached)
    for clock in ("wall", "cpu"):
        pairs = zip(encoded, prepared, strict=True)
        row[f"{clock}_ratio"] = statistics.median(a[f"{clock}_seconds"] / b[f"{clock}_seconds"] for a, b in pairs)
    print(f"{name}: {row['wall_ratio']:.0%} of encode_batch's rate by the clock, {row['cpu_ratio']:.0%} in CPU seconds")
    return row


def run(project: Path, script: str, environment: dict[str, str]) -> dict:
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=project,
        env=os.environ | {"TOKENIZERS_PARALLELISM": "true"} | environment,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{project}: {done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
