"""Checkpoints that others packed into 4 bits: vLLM loads them by the emitted engine.py, and says what their exact values say."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml
from engine_projects import DRIVER, find_model, find_python
from stored_formats import CONFIGS, write_checkpoint

from generator.case.request import Request
from generator.emit.plan_json import to_json
from generator.emit.render import render
from generator.pipeline import document_request

pytestmark = [pytest.mark.engines, pytest.mark.slow]
PROMPT = [504, 3575, 282, 4649, 314]
"""The capital of France is"""
ON_A_CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


def answer(form: str, folder: Path) -> list[int]:
    python, model = find_python("serve-vllm"), write_checkpoint(find_model(), folder / "m", form)
    asked = {"hardware": "1xl40s", "concurrency": 1, "prompt_tokens": 64, "new_tokens": 32, "offline": True}
    document = document_request(
        Request(model=str(model), mode="infer", pins=(("engine", "vllm"),), **asked), for_project=True
    )
    assert document.choice["quantization"] == ("stored" if CONFIGS[form] else "none")
    render(to_json(document), folder / "p")
    place = folder / "p" / "model" / model.name
    if not place.exists():
        place.parent.mkdir(exist_ok=True)
        place.symlink_to(model)
    config = yaml.safe_load((folder / "p" / "config.yaml").read_text())
    config["serving"]["flags"] |= {"enforce-eager": True, "max-model-len": 128, "max-num-batched-tokens": 128}
    (folder / "p" / "config.yaml").write_text(yaml.safe_dump(config))
    job = {"prompts": [PROMPT], "sampling": {"max_new_tokens": 24}}
    words = [str(python), str(DRIVER), "generate"]
    done = subprocess.run(
        words, cwd=folder / "p", input=json.dumps(job), env=os.environ | ON_A_CPU, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])["alone"][0]


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> list[int]:
    return answer("plain", tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize("form", [form for form in CONFIGS if form != "plain"])
def test_a_packed_checkpoint_says_what_its_exact_values_say(form, plain, tmp_path):
    """Greedy tokens of SmolLM2-135M."""
    assert answer(form, tmp_path) == plain
