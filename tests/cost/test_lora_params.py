"""Parameters of adapters against those that PEFT makes on small models of each kind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "model"))  # variants.py lies there

from variants import configs

from generator.cost.shape import build_shape, count_lora_params
from generator.inputs.meta_device import make_config
from generator.model import describe

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
RANK = 4


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "gpt2", "phi3", "gpt_neox", "bloom", "falcon", "mpt", "opt"])
def test_all_linear_adapts_as_many_as_peft(model_type):
    """Projections that are one module get one adapter: GPT-2's c_attn was counted as three."""
    config = configs(model_type)[0]
    model = transformers.AutoModelForCausalLM.from_config(make_config(config))
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=RANK, target_modules="all-linear", task_type="CAUSAL_LM"))
    made = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    assert count_lora_params(build_shape(describe(config, "x"), "causal-lm", 2), "all-linear", RANK) == made


EXACT = (
    "mixtral",
    "qwen3_moe",
    "olmoe",
    "flex_olmo",
    "granitemoe",
    "gpt_oss",
    "glm4_moe",
    "dots1",
    "ernie4_5_moe",
    "minimax_m2",
)
NEAR = (
    "qwen2_moe",
    "granitemoeshared",
    "phimoe",
    "deepseek_v2",
    "deepseek_v3",
    "llama4_text",
    "minimax",
    "qwen3_next",
    "lfm2_moe",
)


@pytest.mark.parametrize("model_type", [*EXACT, *NEAR])
def test_routed_experts_are_adapted_where_peft_does_it(model_type):
    """PEFT turns "all-linear" into adapters of fused experts for some types; of gpt-oss it was four times what is made."""
    config = configs(model_type)[0]
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(make_config(config))
        adapted = peft.get_peft_model(
            model, peft.LoraConfig(r=RANK, target_modules="all-linear", task_type="CAUSAL_LM")
        )
    made = {name: p.numel() for name, p in adapted.named_parameters() if p.requires_grad}
    shape = build_shape(describe(config, "x"), "causal-lm", 2)
    assert shape.adapted_experts == any("experts." in name for name in made)
    expected = pytest.approx(sum(made.values()), rel=0 if model_type in EXACT else 0.16)
    assert count_lora_params(shape, "all-linear", RANK) == expected
