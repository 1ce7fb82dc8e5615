"""Small models of the types that an engine says it runs, converted and asked: tokens and log-probabilities are Transformers'."""

from __future__ import annotations

import pytest
from engine_projects import convert, drive, find_python, generate_eagerly, make_project, score_eagerly

from benchmarks.zoo import make_tokenizer
from generator.techniques.engines import list_engines

pytestmark = [pytest.mark.engines, pytest.mark.slow]
SIZES = {
    "vocab_size": 300,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 1,
    "tie_word_embeddings": False,
}
SCALED = {"rope_theta": 10000.0, "original_max_position_embeddings": 64}
ROTATIONS = {
    "linear": {"factor": 4.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "longrope": {"short_factor": [1 + n / 10 for n in range(32)], "long_factor": [2.0 + n for n in range(32)]},
    "yarn": {"factor": 4.0},
}
ENGINES = {engine.leaf: engine for engine in list_engines() if engine.conversion}
PROMPTS = [[5 + (7919 * (place + size)) % 250 for place in range(size)] for size in (7, 40, 90)]
"""Shorter and longer than the window and the length that rotary embeddings are scaled from."""


def list_cases() -> list[tuple[str, str, str]]:
    """An engine's leaf, a type of model, and what is special about it."""
    found = []
    for leaf, engine in sorted(ENGINES.items()):
        found += [(leaf, name, "") for name in ("llama", "qwen2", "qwen3") if name in engine.model_types]
        known = set(ROTATIONS) if engine.rotations is None else set()
        known |= set((engine.rotations or {}).get("llama", (engine.rotations or {}).get("", ())))
        found += [(leaf, "llama", kind) for kind in ROTATIONS if kind in known]
        found += [(leaf, "mistral", "window")] if engine.windowed is None or "mistral" in engine.windowed else []
    return found


def make_model(folder, model_type: str, special: str) -> None:
    """Random weights, large enough that tokens differ."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    more = {"sliding_window": 16 if special == "window" else None} if model_type == "mistral" else {}
    if special in ROTATIONS:
        more["rope_parameters"] = SCALED | {"rope_type": special} | ROTATIONS[special]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **SIZES, **more))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(4)
    make_tokenizer(folder)
    model.save_pretrained(folder)


@pytest.mark.parametrize(("leaf", "model_type", "special"), list_cases())
def test_tokens_and_scores_are_those_of_transformers(tmp_path, leaf, model_type, special):
    python, converting = find_python(f"serve-{leaf}"), find_python(f"convert-{leaf}")
    make_model(tmp_path / "m", model_type, special)
    made = make_project(tmp_path / "p", leaf, leaf.replace("_", "-"), tmp_path / "m", max_context=160)
    convert(converting, made)
    answers = generate_eagerly(tmp_path / "m", PROMPTS, 8)
    found = drive(python, made, "generate", prompts=PROMPTS, sampling={"max_new_tokens": 8, "ends": False})
    assert found["alone"] == found["batches"][0] == answers
    texts = [prompt + answer for prompt, answer in zip(PROMPTS, answers, strict=True)]
    scores = drive(python, made, "score", texts=texts)["scores"]
    for mine, theirs in zip(scores, score_eagerly(tmp_path / "m", texts), strict=True):
        assert mine == pytest.approx(theirs, abs=2e-3)
