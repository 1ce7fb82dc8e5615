"""Adapters, caches and work for a token from a config alone, against PEFT, a cache and PyTorch's own counter."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))  # small.py and variants.py lie beside this file

from variants import configs

from generator.inputs.meta_device import build_model, make_config
from generator.model.anatomy import anatomy
from generator.model.counts import cached_elements, forward_flops, lora_params

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


def adapted(model_type: str, targets) -> int:
    peft = pytest.importorskip("peft")
    model, _ = build_model(make_config(configs(model_type)[0]))
    lora = peft.LoraConfig(r=3, target_modules=targets, task_type="CAUSAL_LM")
    with torch.device("meta"):
        made = peft.get_peft_model(model, lora)
    return sum(p.numel() for name, p in made.named_parameters() if "lora_" in name)


@pytest.mark.parametrize("model_type", [*DENSE, "olmo2", "starcoder2", "stablelm", "granite", "cohere"])
def test_all_linear_adapters_are_those_of_peft(model_type):
    assert lora_params(anatomy(configs(model_type)[0]), "all-linear", 3) == adapted(model_type, "all-linear")


@pytest.mark.parametrize(
    ("model_type", "targets"),
    [
        ("llama", ("q_proj", "v_proj")),
        ("qwen3", ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")),
        ("gpt2", ("c_attn",)),
        ("phi3", ("qkv_proj", "gate_up_proj")),
        ("mixtral", ("q_proj", "v_proj")),
        ("bloom", ("query_key_value",)),
    ],
)
def test_named_adapters_are_those_of_peft(model_type, targets):
    assert lora_params(anatomy(configs(model_type)[0]), targets, 3) == adapted(model_type, list(targets))


def test_adapters_of_fused_experts_are_not_guessed():
    with pytest.raises(ValueError, match="PEFT's own choice"):
        lora_params(anatomy(configs("mixtral")[0]), "all-linear", 3)


def real(model_type: str):
    """The small model with weights, and its config."""
    from transformers import AutoModelForCausalLM

    told = configs(model_type)[0]
    config = make_config(told | {"max_position_embeddings": 64, "n_positions": 64} if "n_positions" in told else told)
    return told, AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()


@pytest.mark.parametrize("model_type", DENSE)
def test_work_for_a_token_is_that_of_the_flop_counter(model_type):
    from torch.utils.flop_counter import FlopCounterMode

    told, model = real(model_type)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, 16, dtype=torch.long), use_cache=False)
    assert forward_flops(anatomy(told), 16) == pytest.approx(counter.get_total_flops(), rel=0.01)


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "gpt2", "falcon", "gpt_bigcode", "deepseek_v3", "mixtral"])
def test_the_cache_keeps_so_many_elements(model_type):
    told, model = real(model_type)
    told["sliding_window"] = None
    with torch.no_grad():
        cache = model(torch.zeros(1, 9, dtype=torch.long), use_cache=True).past_key_values
    kept = sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)
    assert kept == cached_elements(anatomy(told), 9)
