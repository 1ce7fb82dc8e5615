"""Fields of a config.json that hold what no model has: each is named, with its value and what is expected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from huggingface_hub.errors import StrictDataclassError

from generator import pipeline
from generator.case.request import Request
from generator.errors import SourceError
from generator.inputs.config_checks import find_oddities, shorten
from generator.model.catalog import load_catalog
from generator.model.settings import load_defaults

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "models"
SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size", "head_dim")
WRONG = ("abc", "12", -3, {"a": 1}, True, float("nan"), float("inf"), 10**30, 1.5)
TYPED = {
    "tie_word_embeddings": ("false", 1, [], {}, float("nan")),
    "attention_bias": ("no", 0.5, [True]),
    "rms_norm_eps": ("1e-5", True, {}, float("nan"), float("inf"), -1e-5),
    "rope_theta": ("10000", True, float("nan"), -1),
    "attention_dropout": ("0.1", -0.1, float("inf")),
    "hidden_act": (3, ["silu"], True),
    "rope_scaling": ("linear", [1], 2.0),
    "rope_parameters": ("linear", [1], 2.0),
    "architectures": ("LlamaForCausalLM", [1], {}),
    "model_type": (None, 3, ["llama"]),
    "quantization_config": ("int8", {"a": 1}, [1]),
    "sliding_window": ("4096", -1, True),
    "num_key_value_heads": ("8", -8, 2.5, True),
}


def read_example(name: str) -> dict:
    return json.loads((EXAMPLES / f"{name}.json").read_text(encoding="utf-8"))


def refuse(folder: Path, config: dict) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(SourceError) as error:
        pipeline.plan_request(Request(model=str(path), mode="infer", hardware="1xh100-sxm-80gb", offline=True))
    return str(error.value)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-30b-a3b", "bert-base"])
@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_a_size_is_a_number_that_can_be(tmp_path, name, value):
    config = read_example(name)
    for key in SIZES:
        if key in config:
            said = refuse(tmp_path, config | {key: value})
            assert f"{key} is {json.dumps(value)}, a whole number from" in said


ENDLESS = 10**400
"""A whole number that JSON holds and no float."""


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "llama", "hidden_size": ENDLESS}, "hidden_size is 1000"),
        ({"model_type": "llama", "rope_theta": ENDLESS}, "rope_theta is 1000"),
        ({"model_type": "qwen3_next", "linear_value_head_dim": ENDLESS}, "linear_value_head_dim is 1000"),
        ({"model_type": "pegasus", "encoder_layers": 10**9}, "encoder_layers is 1000000000, at most 10000"),
        ({"model_type": "swin", "depths": [2, 10**9]}, "depths is [2, 1000000000], at most 10000"),
        ({"model_type": "swin", "depths": "gelu"}, "cannot size"),
    ],
    ids=str,
)
def test_what_no_machine_computes_with_is_refused_at_once(tmp_path, config, words):
    """Tracebacks of the conversion to a float, and minutes for a billion layers that are looked at one by one."""
    assert words in refuse(tmp_path, load_defaults()["types"][config["model_type"]]["defaults"] | config)


def test_products_of_any_size_can_be_named():
    assert shorten(10**5000) == "a number of thousands of digits"


@pytest.mark.parametrize("key", TYPED)
def test_what_is_no_size_has_its_kind_too(tmp_path, key):
    """ "false" is true to Python: its output layer would have been counted as its embedding."""
    for value in TYPED[key]:
        said = refuse(tmp_path, read_example("llama-3.1-8b") | {key: value})
        assert key in said and ("expected" in said or "quant_method" in said), said


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_experts_per_tok", 0),
        ("num_experts_per_tok", "8"),
        ("num_experts_per_tok", 4096),
        ("norm_topk_prob", "yes"),
    ],
)
def test_experts(tmp_path, key, value):
    assert key in refuse(tmp_path, read_example("qwen3-30b-a3b") | {key: value})


def test_what_is_inside_another_is_held_to_its_own_type(tmp_path):
    inner = read_example("llama-3.1-8b")
    config = {"model_type": "llava", "text_config": inner | {"tie_word_embeddings": "false"}, "vision_config": {}}
    assert 'tie_word_embeddings is "false", true or false is expected' in refuse(tmp_path, config)
    config = {"model_type": "llava", "text_config": inner, "vision_config": {"patch_size": "14"}}
    assert 'patch_size is "14"' in refuse(tmp_path, config)


@pytest.mark.parametrize(
    "published",
    [
        {"model_type": "exaone4", "sliding_window_pattern": "LLLG", "layer_types": ["full_attention"]},
        {"model_type": "minimax", "mlp_alpha_factor": 3.5565588200778455, "mlp_beta_factor": 1},
        {"model_type": "mamba", "time_step_rank": "auto"},
        {"model_type": "jamba", "mamba_dt_rank": "auto"},
        {"model_type": "llama", "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": -1}},
    ],
    ids=lambda published: published["model_type"],
)
def test_what_published_configs_hold_beside_the_kind_of_a_default(published):
    assert not list(find_oddities(published))


def test_published_models_are_taken_as_they_are():
    odd = {name: list(find_oddities(dict(model.config))) for name, model in load_catalog().items()}
    assert not {name: said for name, said in odd.items() if said}


def test_configs_of_every_type_are_taken_as_transformers_writes_them():
    """But LXMERT's, whose layers are counted by stream."""
    mapping = pytest.importorskip("transformers").models.auto.configuration_auto.CONFIG_MAPPING
    odd = {}
    for name in sorted(mapping):
        try:
            config = json.loads(mapping[name]().to_json_string(use_diff=False))
        except (TypeError, ValueError, AttributeError, ImportError, StrictDataclassError):  # it has no default form
            continue
        odd |= {name: list(find_oddities(config))}
    assert len(odd) > 400
    assert {name for name, said in odd.items() if said} == {"lxmert"}
