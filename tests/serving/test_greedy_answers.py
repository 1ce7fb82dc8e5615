"""batch.py and infer.py beside `generate`, by the model's own generation_config.json; what other engines are asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from serving_projects import ANSWERS, ASKING, BATCH, make_serving_project

TEXTS = (
    "The history of the city of Rome",
    "Once upon a time",
    "Rain, rain, rain, rain, rain, rain, rain, rain",
    "A recipe for bread: take flour, water, salt and yeast. Then",
    "1, 2, 3, 4, 5, 6,",
)
NEW = 32


def make_model(folder: Path, model: Path, **generation) -> Path:
    """The same weights, with another generation_config.json."""
    folder.mkdir()
    for file in model.iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "generation_config.json").unlink()
    own = json.loads((model / "generation_config.json").read_text()) | generation
    (folder / "generation_config.json").write_text(json.dumps(own))
    return folder


def generate(model: Path, text: str) -> tuple[str, int]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager").eval()
    inputs = tokenizer(text, return_tensors="pt")
    new = plain.generate(**inputs, max_new_tokens=NEW, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    return tokenizer.decode(new, skip_special_tokens=True), len(new)


def run(project: Path, *words: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run([sys.executable, *words], cwd=project, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
@pytest.mark.parametrize(
    "generation",
    [{}, {"repetition_penalty": 1.3, "no_repeat_ngram_size": 0}, {"eos_token_id": [2, 28, 30]}],  # a comma, a full stop
    ids=["plain", "penalty", "several ends"],
)
def test_greedy_answers_are_those_of_generate(model, tmp_path, generation):
    """The penalty of repetitions, which `generate` asks of the likeliest token too, was left out without a word."""
    own = make_model(tmp_path / "m", model, **generation)
    project = make_serving_project(tmp_path / "p", own, BATCH | ANSWERS | ASKING, threads=1, max_new_tokens=NEW)
    (project / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    run(project, "batch.py", "--input", "in.jsonl", "--output", "out.jsonl")
    rows = [json.loads(line) for line in (project / "out.jsonl").read_text().splitlines()]
    expected = [generate(own, text) for text in TEXTS]
    assert [(row["answer"], row["new_tokens"]) for row in rows] == expected
    report = json.loads(run(project, "infer.py", "--raw", "--json", "--prompt", TEXTS[2]).stdout)
    assert report["answer"] == TEXTS[2] + expected[2][0]


def test_what_is_asked_of_other_engines(load, monkeypatch):
    """vLLM and SGLang know the ends of the model's files, and not that of a turn of its chat template."""
    for name in ("vllm", "vllm.lora", "vllm.lora.request", "sglang"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["vllm"].LLM, sys.modules["vllm"].SamplingParams = object, SimpleNamespace
    sys.modules["vllm.lora.request"].LoRARequest = object
    monkeypatch.setitem(sys.modules, "machine", SimpleNamespace(peak_memory=dict))
    for leaf in ("sources", "stop_tokens", "template_limits"):
        load(leaf)
    leaves = {leaf: load(f"serving/{leaf}", leaf) for leaf in ("sampling", "prompts", "whole_answers")}
    sampling = leaves["sampling"].Sampling(8, repetition_penalty=1.3, min_p=0.1)
    measured = leaves["sampling"].Sampling(8, ends=False)
    vllm, sglang = load("engines/vllm", "engine"), load("engines/sglang", "engine")
    asked, given = vllm.translate(sampling, [2, 7]), sglang.translate(sampling, [2, 7])
    assert asked.stop_token_ids == given["stop_token_ids"] == [2, 7]
    assert asked.repetition_penalty == given["repetition_penalty"] == 1.3
    assert (asked.min_p, asked.top_k) == (0.1, 0) and (given["min_p"], given["top_k"]) == (0.1, -1)
    assert vllm.translate(measured, [2]).stop_token_ids == sglang.translate(measured, [2])["stop_token_ids"] == []


def test_what_the_file_asks_and_nobody_does_is_told(load, tmp_path, capsys):
    for leaf, name in (("sources", "sources"), ("stop_tokens", "stop_tokens"), ("serving/prompts", "prompts")):
        load(leaf, name)
    defaults = load("serving/generation_defaults", "generation_defaults")
    (tmp_path / "generation_config.json").write_text('{"repetition_penalty": 1.1, "no_repeat_ngram_size": 3}')
    config = {"model": str(tmp_path)}
    assert defaults.read_choices(config, frozenset({"repetition_penalty"}), False) == {"repetition_penalty": 1.1}
    assert capsys.readouterr().err.count("no_repeat_ngram_size 3") == 1
    assert defaults.read_choices(config, frozenset(), False) == {}
    assert "repetition_penalty 1.1" in capsys.readouterr().err


def test_what_is_drawn_is_drawn_as_the_file_asks(load, tmp_path):
    for leaf, name in (("sources", "sources"), ("stop_tokens", "stop_tokens"), ("serving/prompts", "prompts")):
        load(leaf, name)
    defaults = load("serving/generation_defaults", "generation_defaults")
    (tmp_path / "generation_config.json").write_text(
        '{"do_sample": true, "temperature": 0.6, "top_k": 20, "min_p": 0.1}'
    )
    applied = frozenset({"top_k", "min_p", "repetition_penalty"})
    choices = [defaults.read_choices({"model": str(tmp_path)}, applied, draws) for draws in (False, True)]
    assert choices == [{}, {"top_p": 1.0, "top_k": 20, "min_p": 0.1}]
