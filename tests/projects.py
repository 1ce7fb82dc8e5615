"""Rendered projects for tests: of a model so small that it trains in a second, on text of one sentence."""

from __future__ import annotations

import json
from pathlib import Path

from generator import pipeline
from generator.case.request import Request
from generator.emit import render
from generator.emit.document import build_document
from generator.emit.plan_json import to_json

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
TEXT = "the quick brown fox jumps over the lazy dog\n" * 400


def render_small_project(folder: Path, data: str = TEXT, name: str = "d.txt", **request) -> Path:
    """A project in ``folder``/p; its model and data lie beside it."""
    (folder / "m").mkdir(parents=True)
    (folder / "m" / "config.json").write_text(json.dumps(MODEL))
    (folder / name).write_text(data)
    small = {"seq_len": 16, "global_batch": 4, "max_steps": 8, "pins": (("compile", "off"), ("precision", "fp32"))}
    places = {"model": str(folder / "m" / "config.json"), "data": str(folder / name), "hardware": "cpu:1"}
    planned = pipeline.plan_request(Request(**{"offline": True} | places | small | request))
    document = to_json(build_document(planned, name="p"))
    document["config"]["machine"]["memory_gib"] = document["config"]["machine"]["needs_gib"]
    render.render(document, folder / "p")
    return folder / "p"
