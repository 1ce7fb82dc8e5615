"""What a converter would write otherwise than Transformers computes it is refused before it answers otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest
from making import case, cpu_device, llama

from generator.decide.limits import find_limits
from generator.decide.serving import plan_case
from generator.techniques.engines import list_engines

CPU = {"mode": "infer", "task": "causal-lm"}
ENGINES = {engine.name: engine for engine in list_engines()}
KINDS = {
    "ctranslate2": {"linear"},
    "onnxruntime-genai": {"llama3"},
    "openvino-genai": {"linear", "llama3", "yarn"},
    "llama-cpp": {"linear", "llama3", "yarn", "dynamic"},
}


def explain(engine: str, **more) -> str | None:
    return ENGINES[engine].obstacle(case(cpu_device(), replace(llama(), **more), **CPU))


@pytest.mark.parametrize("engine", KINDS)
@pytest.mark.parametrize("kind", ["linear", "llama3", "yarn", "longrope", "dynamic"])
def test_rotary_embeddings_are_those_that_its_converter_writes(engine, kind):
    """tests/engines/test_models.py converts small models of those kinds."""
    why = explain(engine, rotation=kind)
    assert why is None if kind in KINDS[engine] else f"that are scaled ({kind})" in why


def test_plain_ones_are_written_by_all():
    assert [explain(engine) for engine in KINDS] == [None] * len(KINDS)


@pytest.mark.parametrize("engine", KINDS)
def test_a_window_that_an_engine_does_not_keep_to(engine):
    windowed = {"model_type": "mistral", "sliding_window": 1024, "attention": ()}
    assert "the window of the layers of models of type mistral (1024 tokens, and " in explain(engine, **windowed)
    assert explain(engine, model_type="mistral") is None


@pytest.mark.parametrize("engine", KINDS)
def test_within_a_window_it_is_the_limit(engine):
    """Mistral 7B v0.1 was left to Transformers on CPUs, for prompts of 2,048 tokens of its 4,096."""
    windowed = replace(llama(), model_type="mistral", sliding_window=4096, attention=())
    pins = (("engine", engine),)
    planned = plan_case(case(cpu_device(), windowed, pins=pins, **CPU))
    limits = find_limits(planned)
    assert (limits.max_context, limits.limited_by) == (4096, "window of the model's layers")


@pytest.mark.parametrize(
    ("engine", "model_type"),
    [
        *(("ctranslate2", name) for name in ("gemma2", "gemma3_text", "phi3")),
        *(("onnxruntime-genai", name) for name in ("gemma3_text", "lfm2", "olmo", "smollm3")),
    ],
)
def test_types_whose_conversion_ends_or_answers_otherwise(engine, model_type):
    assert "its converter knows no models of type" in explain(engine, model_type=model_type)
