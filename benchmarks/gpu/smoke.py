"""Every technique that one GPU can take, each in a project of its own with a toy model: does what is emitted run, and learn alike?

The projects are planned and written by perfgen before, with their random weights and data: a machine with a GPU needs none of it.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.gpu.inputs import TOKENS, make_tokenizer, words_of_language

STEPS = 6
PLANNED = "as-planned"
TEMPLATE = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{{ eos_token }}{% endfor %}"
SIZES = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": TOKENS,
    "max_position_embeddings": 8192,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "head_dim": 64}
MODELS = {
    "llama": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **SIZES},
    "mixture": {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], **SIZES, **EXPERTS},
    "bert": {"model_type": "bert", "architectures": ["BertForMaskedLM"], **SIZES},
}
MODELS["draft"] = MODELS["llama"] | {"num_hidden_layers": 1}
"""small, and wide enough for every kernel: heads of 64, layers in multiples of 128"""

TRAINED = ("--seq-len", "512", "--global-batch", "8", "--eval", "none", "--learning-rate", "1e-3")
SFT = ("--task", "sft", *TRAINED)
INFER = ("--mode", "infer", "--prompt-tokens", "128")
CASES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...] | None]] = {
    "sft": ("llama", SFT, None),
    "lora": ("llama", (*SFT, "--train", "lora"), ("precision", "packing", "compile", "checkpointing")),
    "dora": ("llama", (*SFT, "--train", "lora", "--adapter", "dora"), ("packing",)),
    "rslora": ("llama", (*SFT, "--train", "lora", "--adapter", "rslora", "--lora-dropout", "0.1"), ()),
    "qlora": ("llama", (*SFT, "--train", "qlora"), ("packing", "checkpointing", "optimizer")),
    "qlora-dora": ("llama", (*SFT, "--train", "qlora", "--adapter", "dora"), ()),
    "mixture": ("mixture", SFT, ("packing", "compile", "precision")),
    "mixture-lora": ("mixture", (*SFT, "--train", "lora"), ()),
    "pretrain": (
        "llama",
        ("--task", "causal-lm", "--from-scratch", *TRAINED),
        ("loss", "compile", "checkpointing", "precision"),
    ),
    "pretrain-mixture": ("mixture", ("--task", "causal-lm", "--from-scratch", *TRAINED), ("compile",)),
    "long": ("llama", (*SFT, "--train", "lora", "--seq-len", "4096"), ("checkpointing",)),
    "classes": ("bert", ("--task", "text-classification", *TRAINED), ("packing", "precision", "compile", "attention")),
    "classes-lora": ("llama", ("--task", "text-classification", "--train", "lora", *TRAINED), ()),
    "infer": ("llama", (*INFER, "--concurrency", "4"), None),
    "infer-one": ("llama", INFER, None),
    "infer-mixture": ("mixture", INFER, ("compile",)),
}
"""model, flags, and the axes of which each technique gets a project beside the plan's own choice (``None``: all)"""
ONE_DEVICE = ("parallelism", "trained", "cpu-threads")
"""axes that a single GPU leaves no choice in, or that are cases here"""
SERVED_HERE = ("--pin", "engine=transformers")


# --- before: projects -------------------------------------------------------------------------------------------------


def prepare_smoke(folder: Path, hardware: str, only: list[str]) -> None:
    """``folder``/CASE/ with model, data and a folder for each project: row.json and project/, or refused.txt.

    ``only`` are names, or how they begin: smoke/sft/optimizer.
    """
    names = [(case, pin) for case in CASES for pin in (None, *list_pins(case))]
    chosen = [(case, pin) for case, pin in names if not only or name_row(case, pin).startswith(tuple(only))]
    for name, config in MODELS.items():
        save_weights(folder / "models" / name, config)
    for case in dict(chosen):
        (folder / case).mkdir(parents=True, exist_ok=True)
        if "infer" not in CASES[case][1]:
            write_rows(folder / case / "data.jsonl", CASES[case][1])
    with ThreadPoolExecutor(2) as pool:
        for line in pool.map(lambda name: write_project(folder / name[0], *name, hardware), chosen):
            print(line, flush=True)
    drop_repeated(folder)


def name_row(case: str, pin: tuple[str, str] | None) -> str:
    return f"smoke/{case}/{'='.join(pin) if pin else PLANNED}"


def list_pins(case: str) -> Iterator[tuple[str, str]]:
    from generator.techniques.base import list_axes

    _, flags, only = CASES[case]
    mode = "infer" if "infer" in flags else "train"
    for axis in list_axes():
        if axis.name not in ONE_DEVICE and axis.name != "engine" and (only is None or axis.name in only):
            yield from ((axis.name, technique.name) for technique in axis.members if mode in technique.modes)


def write_project(folder: Path, case: str, pin: tuple[str, str] | None, hardware: str) -> str:
    name = "=".join(pin) if pin else PLANNED
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    model, flags, _ = CASES[case]
    words = [*flags, "--hardware", hardware, "--host-memory", "128gb", "--model", str(folder.parent / "models" / model)]
    words += SERVED_HERE if "infer" in flags else ["--data", str(folder / "data.jsonl")]
    if pin:
        words += ["--pin", name, "--allow", name]
    if pin == ("speculation", "draft-model"):
        words += ["--draft-model", str(folder.parent / "models" / "draft")]
    command = [sys.executable, "-m", "generator.cli", "init", str(place / "project"), *words]
    command += ["--offline", "--no-smoke", "--overwrite", "--yes", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        (place / "refused.txt").write_text(done.stderr, encoding="utf-8")
        return f"{case}/{name}: refused: {done.stderr.strip().splitlines()[0][:150]}"
    row = {
        "name": name_row(case, pin),
        "kind": "smoke",
        "case": case,
        "weights": model,
        "project": name,
        "steps": STEPS,
    }
    (place / "row.json").write_text(json.dumps(row), encoding="utf-8")
    return f"{case}/{name}: rendered"


def drop_repeated(folder: Path) -> None:
    """What a pin names and the plan chose anyway is one project."""
    for case in CASES:
        seen = {}
        for path in sorted(
            (folder / case).glob("*/project/plan.json"), key=lambda path: "=" in path.parent.parent.name
        ):
            choice = json.dumps(json.loads(path.read_text(encoding="utf-8"))["choice"], sort_keys=True)
            if choice in seen:
                shutil.rmtree(path.parent.parent)
            seen.setdefault(choice, path)


def save_weights(folder: Path, config: dict) -> None:
    """A tokenizer of about a token a word with a chat template, and random weights that are the same every time."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    maker = AutoModelForMaskedLM if config["model_type"] == "bert" else AutoModelForCausalLM
    maker.from_config(AutoConfig.for_model(**config), dtype=torch.bfloat16).save_pretrained(folder)


def write_rows(path: Path, flags: tuple[str, ...]) -> None:
    """96 rows, most of them short: of 12 words to nine tenths of a sequence."""
    language, chance = words_of_language(), random.Random(0)
    most = 0.9 * int(flags[len(flags) - 1 - flags[::-1].index("--seq-len") + 1])
    lines = []
    for number in range(96):
        words = chance.choices(language, k=round(12 * (most / 12) ** chance.random() ** 2))
        half = max(1, len(words) // 3)
        turns = [(" ".join(part), role) for part, role in ((words[:half], "user"), (words[half:], "assistant"))]
        text = " ".join(words)
        lines.append(
            {"messages": [{"role": role, "content": part} for part, role in turns]}
            if "sft" in flags
            else {"text": text, "label": "ab"[number % 2]}
            if "text-classification" in flags
            else {"text": text}
        )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


# --- there: one project -----------------------------------------------------------------------------------------------


def list_prepared(folder: Path) -> list[dict]:
    """As planned first, then the techniques, the cases in turn."""
    turns = []
    for case in sorted(folder.glob("*")):
        rows = [json.loads(path.read_text(encoding="utf-8")) for path in case.glob("*/row.json")]
        turns += enumerate(sorted(rows, key=lambda row: (row["project"] != PLANNED, row["project"])))
    return [row for _, row in sorted(turns, key=lambda turn: turn[0])]


def measure_smoke(row: dict, work: Path, run_script: Callable[[Path, list[str]], str]) -> dict:
    """The emitted scripts as their owner runs them: train.py and an answer, or for a server an answer, a batch and a benchmark."""
    from benchmarks.gpu.runs import copy_project, last_lines, list_train_words, point_config

    inputs = work / "inputs" / "smoke" / row["case"]
    project = work / "projects" / "smoke" / row["case"] / row["project"]
    copy_project(inputs / row["project"] / "project", project)
    point_config(project, inputs, inputs.parent / "models" / row["weights"])
    measured: dict = {}
    started = time.perf_counter()
    try:
        if (project / "train.py").exists():
            measured["said"] = choose_lines(run_script(project, list_train_words(row["steps"])))
            measured["train"] = json.loads((project / "runs" / "run.json").read_text(encoding="utf-8"))
        for name, words in list_answers(project, row, inputs):
            measured[name] = run_script(project, words).strip().splitlines()[-1:]
    except subprocess.CalledProcessError as error:
        return {**measured, "error": last_lines(error.output), "failed": " ".join(error.cmd[1:3])}
    finally:
        shutil.rmtree(project / "runs", ignore_errors=True)
    return {**measured, "seconds": time.perf_counter() - started}


SAID = ("as planned", "memory is not", "slower than", "not compared", "not checked")


def choose_lines(output: str) -> list[str]:
    """What the first step found."""
    return [line for line in output.splitlines() if line.startswith(SAID)]


def list_answers(project: Path, row: dict, inputs: Path) -> Iterator[tuple[str, list[str]]]:
    if (project / "train.py").exists():
        if row["project"] == PLANNED:
            yield "answer", ["infer.py", "--prompt", "adas aeas aias"]
        return
    yield "answer", ["infer.py", "--prompt", "adas aeas aias", "--max_new_tokens", "48"]
    if row["project"] == PLANNED:
        prompts = inputs / "prompts.jsonl"
        if not prompts.exists():
            prompts.write_text(
                "".join(json.dumps({"prompt": "adas " * n}) + "\n" for n in range(1, 33)), encoding="utf-8"
            )
        yield "batch", ["batch.py", "--input", str(prompts), "--output", str(project / "answers.jsonl")]
        yield "bench", ["bench.py", "--quick", "--within", "60"]
