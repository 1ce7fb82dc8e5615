"""Serving plans of an engine with a server of its own, as folders that its launcher can be read from."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from random import Random

import yaml

from generator.case.request import Request
from generator.emit.plan_json import to_json
from generator.errors import PerfgenError
from generator.pipeline import document_request

ROOT = Path(__file__).resolve().parents[1]
FRAGMENTS = ROOT / "templates" / "fragments"
MODELS = ROOT / "examples" / "models"
HARDWARE = ("1xh100-sxm-80gb", "4xl40s", "8xa100-sxm-80gb", "2x8xh100-sxm-80gb", "1xrtx-4090", "8xb200-sxm-180gb")
GOALS = ("latency", "throughput", "memory", "efficiency")
QUESTIONS = 140
ASKED = (
    {"concurrency": 1},
    {"concurrency": 64, "prompt_tokens": 1024, "new_tokens": 256},
    {"concurrency": 256, "allow": ("quantization=fp8",)},
    {"concurrency": 1, "pins": (("speculation", "prompt-lookup"),)},
)
BESIDE = tuple(
    ("llama-3.1-8b", hardware, "efficiency", {"concurrency": 16, "pins": (("cache", "engine-fp8"),)})
    for hardware in ("1xrtx-4090", "4xl40s")
)
"""Questions that are no part of the draw."""


def plan_projects(folder: Path, engine: str, leaf: str) -> Iterator[tuple[Path, dict]]:
    """Of a draw of questions those that have a plan: a folder with its launcher and config.yaml beside the model's config.json, and
    plan.json. Every so-manieth would be of one machine and one goal, where that number and theirs have a divisor in common."""
    names = sorted(path.stem for path in MODELS.glob("*.json"))
    questions = list(product(names, HARDWARE, GOALS, ASKED))
    for number, (model, hardware, goal, asked) in enumerate((*Random(0).sample(questions, QUESTIONS), *BESIDE)):
        pins = (("engine", engine), *asked.get("pins", ()))
        request = Request(
            model=f"owner/{model}",
            config=str(MODELS / f"{model}.json"),
            hardware=hardware,
            mode="infer",
            optimize_for=goal,
            offline=True,
            **(asked | {"pins": pins}),
        )
        try:
            document = to_json(document_request(request))
        except PerfgenError:  # it does not fit, or the model is none that writes
            continue
        yield write_launcher(folder / str(number), leaf, document, MODELS / f"{model}.json"), document


def write_launcher(folder: Path, leaf: str, document: dict, config: Path) -> Path:
    (folder / "model").mkdir(parents=True)
    shutil.copy(config, folder / "model" / "config.json")
    for name, source in {
        "server": f"serving/launch_{leaf}",
        "api_key": "serving/api_key",
        "generation_defaults": "serving/generation_defaults",
        "launching": "serving/launching",
        "prompts": "serving/prompts",
        "stop_tokens": "stop_tokens",
        "template_limits": "template_limits",
        "sources": "sources",
        "config_file": "config_file",
    }.items():
        shutil.copy(FRAGMENTS / f"{source}.py", folder / f"{name}.py")
    values = document["config"] | {"model": "./model"}
    values.pop("revision", None)  # of the hub
    (folder / "config.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    return folder


def read_flags(python: Path, engine: str, folders: list[Path]) -> list[dict]:
    """What the engine's own parser makes of what the launchers start it with."""
    command = [python, ROOT / "tests" / "engines" / "flags.py", engine]
    environment = os.environ | {"VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(
        command,
        input=json.dumps([str(f) for f in folders]),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
