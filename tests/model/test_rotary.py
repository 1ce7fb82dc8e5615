"""YaRN as model cards say to add it: the factor alone, which Transformers computes with and nobody counts positions by."""

from __future__ import annotations

import json

import pytest

from generator import pipeline
from generator.case.request import Request
from generator.decide.limits import find_limits
from generator.errors import UsageError
from generator.model.catalog import load_catalog
from generator.model.rotary import find_rotation, find_stretched_positions

QWEN = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 32768,
    "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
}


def plan(folder, config: dict, **asked):
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    known = {"model": str(path), "hardware": "1xh100-sxm-80gb", "task": "sft", "tokenizer": "any/name", "offline": True}
    return pipeline.plan_request(Request(**known | asked))


def test_a_factor_that_config_json_does_not_count_is_noted(tmp_path):
    notes = [note.text for note in plan(tmp_path, QWEN).notes]
    assert any("YaRN would reach 131,072 positions, and config.json says 32,768" in note for note in notes)


@pytest.mark.parametrize("asked", [{"seq_len": 65536}, {"mode": "infer", "task": None, "prompt_tokens": 65536}])
def test_who_goes_beyond_is_told_what_to_write(tmp_path, asked):
    asked = {key: value for key, value in asked.items() if value}
    with pytest.raises(UsageError) as refused:
        plan(tmp_path, QWEN, **asked)
    assert '"max_position_embeddings": 131072' in str(refused.value)


def test_and_is_planned_with_it(tmp_path):
    planned = plan(tmp_path, QWEN | {"max_position_embeddings": 131072}, seq_len=65536)
    assert planned.plan.case.workload.seq_len == 65536
    assert not any("YaRN" in note.text for note in planned.notes)


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
        {"rope_type": "yarn", "factor": 4.0},
        {"rope_type": "yarn", "factor": float("inf"), "original_max_position_embeddings": 8192},
        {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8192},
        {"full_attention": {"rope_type": "default"}},
        None,
    ],
)
def test_who_says_how_far_it_reaches(scaling):
    assert find_stretched_positions(QWEN | {"rope_scaling": scaling}) is None


def test_published_configs_count_what_they_stretch():
    assert not [model.name for model in load_catalog().values() if find_stretched_positions(model.config)]


@pytest.mark.parametrize(
    ("scaling", "kind"),
    [
        ({"type": "yarn", "factor": 4.0}, "yarn"),
        ({"rope_type": "default", "rope_theta": 10000.0}, None),
        ({"sliding_attention": {"rope_type": "default"}, "full_attention": {"rope_type": "linear"}}, "linear"),
        (None, None),
    ],
)
def test_the_kind_is_named_by_whichever_words(scaling, kind):
    assert (
        find_rotation({"rope_scaling": scaling}) == find_rotation({"text_config": {"rope_parameters": scaling}}) == kind
    )


def test_rows_of_a_cache_end_where_longrope_turns_keys_otherwise(tmp_path):
    """Two kinds of keys do not go together, nor do two texts on either side of the length."""
    longrope = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    config = QWEN | {"model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "rope_scaling": longrope}
    config |= {"original_max_position_embeddings": 4096, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
    asked = {"mode": "infer", "task": "causal-lm", "hardware": "cpu:4", "pins": (("engine", "transformers"),)}
    short = plan(tmp_path, config, prompt_tokens=2048, new_tokens=128, **asked).plan
    assert short.best.choice["cache"] == "static" and find_limits(short).max_context == 4096
    long = plan(tmp_path, config, prompt_tokens=8192, new_tokens=128, **asked).plan
    assert long.best.choice["cache"] == "dynamic" and find_limits(long).max_context > 8192
