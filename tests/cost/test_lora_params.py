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
RANK = 4


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "gpt2", "phi3", "gpt_neox", "bloom", "falcon", "mpt", "opt"])
def test_all_linear_adapts_as_many_as_peft(model_type):
    """Projections that are one module get one adapter: GPT-2's c_attn was counted as three."""
    config = configs(model_type)[0]
    model = transformers.AutoModelForCausalLM.from_config(make_config(config))
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=RANK, target_modules="all-linear", task_type="CAUSAL_LM"))
    made = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    assert count_lora_params(build_shape(describe(config, "x"), "causal-lm", 2), "all-linear", RANK) == made
