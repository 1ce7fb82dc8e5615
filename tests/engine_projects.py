"""Serving projects of one engine for tests: its leaves beside a config.yaml, in an environment that has its packages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

FRAGMENTS = Path(__file__).resolve().parents[1] / "templates" / "fragments"
SHARED = (
    "config_file",
    "loaded_weights",
    "quiet_imports",
    "sources",
    "stop_tokens",
    "template_limits",
    "serving/decoding",
    "serving/engine_process",
    "serving/engine_thread",
    "serving/generation_defaults",
    "serving/openvino_steps",
    "serving/prompts",
    "serving/sampling",
    "serving/scheduler",
    "serving/converted_weights",
)
DRIVER = Path(__file__).resolve().parent / "engines" / "drive.py"
QUESTIONS = (
    "What is the capital of France?",
    "Write two sentences about rain.",
    "Explain gravity to a child.",
    "How do I boil an egg?",
)
THREADS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def find_python(environment: str) -> Path:
    """The interpreter of an engine's environment, below the folder that PERFGEN_ENGINES names."""
    home = os.environ.get("PERFGEN_ENGINES")
    if not home:
        pytest.skip("PERFGEN_ENGINES names no folder with the engines' environments")
    python = Path(home) / environment / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{python} is not there: the environment of this engine was not made")
    return python


def find_model() -> Path:
    """SmolLM2-135M-Instruct in fp32, as `make demo` keeps it."""
    cache = (
        os.environ.get("DEMO_CACHE") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "perfgen-demo"
    )
    model = Path(cache) / "smollm2-135m-instruct"
    if not (model / "model.safetensors").exists():
        pytest.skip(f"{model} is not there: docs/demo/prepare.py writes it (DEMO_CACHE names its folder)")
    return model


def make_project(folder: Path, leaf: str, engine: str, model: Path, **serving) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in SHARED:
        shutil.copy(FRAGMENTS / f"{name}.py", folder)
    shutil.copy(FRAGMENTS / "engines" / f"{leaf}.py", folder / "engine.py")
    settings = {"engine": engine, "weights": "float32", "max_context": 512}
    if (convert := FRAGMENTS / "conversions" / f"{leaf}.py").exists():
        shutil.copy(convert, folder / "convert.py")
        settings["converted"] = "weights"
    settings |= {"max_concurrency": 4, "threads": THREADS} | serving
    (folder / "config.yaml").write_text(yaml.safe_dump({"model": str(model), "serving": settings}))
    return folder


def drop_weights(folder: Path, part: str, file: str = "model.safetensors") -> None:
    """Those with ``part`` in their names, out of the one file of a model."""
    from safetensors.torch import load_file, save_file

    path = folder / file
    kept = {name: tensor for name, tensor in load_file(path).items() if part not in name}
    save_file(kept, path, metadata={"format": "pt"})


def convert(python: Path, project: Path) -> str:
    ended = subprocess.run([python, "convert.py"], cwd=project, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout


def drive(python: Path, project: Path, task: str, **job) -> dict:
    """What a task of drive.py found, in a process with the engine's packages."""
    command = [python, DRIVER, task]
    ended = subprocess.run(command, cwd=project, capture_output=True, text=True, input=json.dumps(job))
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.splitlines()[-1])


def generate_eagerly(model: Path, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
    """Transformers' own greedy tokens, one prompt at a time, attention written out; past ends of sequence."""
    import torch
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager").eval()
    loaded.generation_config.eos_token_id = None
    answers = []
    for prompt in prompts:
        tokens = torch.tensor([prompt])
        mask = torch.ones_like(tokens)  # else generate() hides what equals the padding: here, the end of every turn
        tokens = loaded.generate(tokens, attention_mask=mask, max_new_tokens=new_tokens, do_sample=False)
        answers.append(tokens[0, len(prompt) :].tolist())
    return answers


def score_eagerly(model: Path, texts: list[list[int]], dtype: str = "float32") -> list[list[float]]:
    """Log-probabilities of the tokens of each text but the first, by Transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(
        model, dtype=getattr(torch, dtype), attn_implementation="eager"
    ).eval()
    scores = []
    for text in texts:
        tokens = torch.tensor([text])
        with torch.inference_mode():
            likely = loaded(tokens).logits[0, :-1].float().log_softmax(-1)
        scores.append(likely.gather(1, tokens[0, 1:, None])[:, 0].tolist())
    return scores


def encode_questions(model: Path) -> list[list[int]]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    turns = [[{"role": "user", "content": question}] for question in QUESTIONS]
    return [tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False) for turn in turns]
