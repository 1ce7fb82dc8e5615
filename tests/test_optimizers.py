"""Optimizers where they can do what they are for: GaLore and APOLLO project the products of all layers, whatever an architecture calls them."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest
from making import case as make_case
from making import cpu_device, llama

from generator.techniques.base import find_technique

SIZES = {
    **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100},
    **{"num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 1},
}
TYPES = (
    "albert",
    "bert",
    "bloom",
    "distilbert",
    "falcon",
    "gpt_neox",
    "llama",
    "mamba",
    "modernbert",
    "opt",
    "phi3",
    "roberta",
)


@pytest.mark.parametrize("name", ["galore", "apollo"])
@pytest.mark.parametrize("model_type", TYPES)
def test_products_of_every_layer_are_projected(model_type, name):
    """Of BERT's none was, which the Trainer refused as it began; of OPT's attention alone."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from transformers.trainer_utils import check_target_module_exists

    with torch.device("meta"):
        model = (
            transformers.AutoModelForSequenceClassification
            if "bert" in model_type
            else transformers.AutoModelForCausalLM
        )
        model = model.from_config(transformers.AutoConfig.for_model(model_type, **SIZES))
    edits = find_technique("optimizer", name).edits(make_case(cpu_device(), llama()))
    targets = next(ast.literal_eval(a.code) for a in edits.training_arguments if a.name == "optim_target_modules")
    linear = {name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    projected = {name for name in linear if check_target_module_exists(targets, name)}
    layered = {name for name in linear if any(part.isdigit() for part in name.split("."))}
    assert projected == layered and layered


def test_states_are_paged_from_an_accelerator():
    """On a CPU bitsandbytes trains with adamw-8bit in its place, and warns."""
    paged = find_technique("optimizer", "paged-adamw-8bit")
    assert "no accelerator" in paged.obstacle(make_case(cpu_device(), llama()))
    assert paged.obstacle(make_case()) is None


@pytest.mark.parametrize("name", ["galore", "apollo"])
def test_what_has_no_linear_layer_is_refused(name):
    technique = find_technique("optimizer", name)
    gpt2 = replace(llama(), model_type="gpt2")
    assert "no nn.Linear" in technique.obstacle(make_case(cpu_device(), gpt2))
    assert technique.obstacle(make_case(cpu_device(), gpt2, train="lora")) is None
