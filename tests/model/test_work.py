"""Work for a token, caches and adapters from a config alone, against PyTorch's own counter, a real cache and PEFT."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))  # small.py and variants.py lie beside this file

from variants import configs

from generator.inputs.meta_device import build_model, make_config
from generator.model import describe
from generator.model.components import Weights
from generator.model.description import build_components, read_family

torch = pytest.importorskip("torch")
DENSE = [
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3_text",
    "phi3",
    "gpt2",
    "gpt_neox",
    "opt",
    "falcon",
    "bloom",
]


def count_lora_params(model_type: str, targets: str | list[str], rank: int) -> int:
    """Two matrices for each Linear layer of the tables that ``targets`` names; "all-linear": for every one but the
    output."""
    components, _ = build_components(*read_family(configs(model_type)[0]))
    linears = [w for w in components if isinstance(w, Weights) and w.kind in ("linear", "outer")]
    adapted = [w for w in linears if targets == "all-linear" or w.name.rsplit(".", 1)[-1] in targets]
    return sum(rank * (w.inputs + w.outputs) * w.count for w in adapted)


def count_peft_params(model_type: str, targets: str | list[str]) -> int:
    peft = pytest.importorskip("peft")
    model, _ = build_model(make_config(configs(model_type)[0]))
    lora = peft.LoraConfig(r=3, target_modules=targets, task_type="CAUSAL_LM")
    with torch.device("meta"):
        adapted = peft.get_peft_model(model, lora)
    return sum(p.numel() for name, p in adapted.named_parameters() if "lora_" in name)


@pytest.mark.parametrize("model_type", [*DENSE, "olmo2", "starcoder2", "stablelm", "granite", "cohere"])
def test_linear_layers_are_those_that_peft_adapts(model_type):
    assert count_lora_params(model_type, "all-linear", 3) == count_peft_params(model_type, "all-linear")


@pytest.mark.parametrize(
    ("model_type", "targets"),
    [
        ("llama", ["q_proj", "v_proj"]),
        ("qwen3", ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]),
        ("gpt2", ["c_attn"]),
        ("phi3", ["qkv_proj", "gate_up_proj"]),
        ("mixtral", ["q_proj", "v_proj"]),
        ("bloom", ["query_key_value"]),
    ],
)
def test_linear_layers_have_the_names_that_peft_knows(model_type, targets):
    assert count_lora_params(model_type, targets, 3) == count_peft_params(model_type, targets)


def build_with_weights(model_type: str, **changes):
    """The small model with weights, and its config."""
    from transformers import AutoModelForCausalLM

    config = configs(model_type)[0] | changes
    longer = {"max_position_embeddings": 64, "n_positions": 64} if "n_positions" in config else {}
    # experts one by one: the counter does not know the grouped product
    how = {"attn_implementation": "eager", "experts_implementation": "eager"}
    return config, AutoModelForCausalLM.from_config(make_config(config | longer), **how).eval()


@pytest.mark.parametrize("model_type", [*DENSE, "cohere", "mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v3"])
def test_work_for_a_token_is_that_of_the_flop_counter(model_type):
    """The counter multiplies every query by every key, whatever the mask hides."""
    from torch.utils.flop_counter import FlopCounterMode

    config, model = build_with_weights(model_type)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, 16, dtype=torch.long), use_cache=False)
    spec = describe(config, "x")
    scores = sum(4.0 * kind.layers * kind.width * 16 for kind in spec.attended)
    assert 16 * (spec.flops_per_token + scores) == pytest.approx(counter.get_total_flops(), rel=0.01)


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "gpt2", "falcon", "gpt_bigcode", "deepseek_v3", "mixtral"])
def test_the_cache_keeps_so_many_elements(model_type):
    config, model = build_with_weights(model_type, sliding_window=None)
    with torch.no_grad():
        cache = model(torch.zeros(1, 9, dtype=torch.long), use_cache=True).past_key_values
    kept = sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)
    assert 2 * kept == 9 * describe(config, "x").kv_bytes_per_token


@pytest.mark.parametrize(
    "model_type",
    [
        "mamba",
        "falcon_mamba",
        "mamba2",
        "jamba",
        "bamba",
        "granitemoehybrid",
        "falcon_h1",
        "lfm2",
        "qwen3_next",
        "olmo_hybrid",
        "nemotron_h",
    ],
)
def test_the_cache_keeps_states_of_this_size(model_type):
    config, model = build_with_weights(model_type)
    with torch.no_grad():
        output = model(torch.zeros(1, 9, dtype=torch.long), use_cache=True)
    cache = output.get("cache_params") or output.past_key_values
    layers = [getattr(layer, name, {}) for layer in cache.layers for name in ("conv_states", "recurrent_states")]
    kept = sum(state.numel() for states in layers for state in states.values() if state is not None)
    assert kept == describe(config, "x").state_elements > 0
