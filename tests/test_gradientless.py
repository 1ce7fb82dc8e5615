"""Which models DDP must look for weights without a gradient in."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from making import H100, case, llama

from generator.inputs.meta_device import make_config
from generator.techniques.base import find_technique
from generator.techniques.parallelism.ddp import GRADIENTLESS

sys.path.insert(0, str(Path(__file__).parent / "model"))  # variants.py lies there

from variants import configs


@pytest.mark.parametrize("model_type", ["llama", "qwen3_moe", "afmoe", "ernie4_5_moe", "laguna", "deepseek_v32"])
def test_a_backward_pass_leaves_weights_without_a_gradient_where_the_table_says(model_type, tmp_path):
    """from_pretrained makes a weight one to train that the class had made without a gradient."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    transformers.AutoModelForCausalLM.from_config(make_config(configs(model_type)[0])).save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    tokens = torch.randint(5, 60, (1, 8))
    model(input_ids=tokens, labels=tokens).loss.backward()
    without = [name for name, weight in model.named_parameters() if weight.requires_grad and weight.grad is None]
    assert bool(without) == (model_type in GRADIENTLESS), without


@pytest.mark.parametrize(
    ("model_type", "train", "looks"), [("llama", "full", False), ("afmoe", "full", True), ("afmoe", "lora", False)]
)
def test_ddp_looks_for_weights_without_a_gradient_where_there_are_any(model_type, train, looks):
    of = case(H100, replace(llama(), model_type=model_type), train=train, devices=2)
    (argument,) = find_technique("parallelism", "ddp").edits(of).training_arguments
    assert argument.code == str(looks)
