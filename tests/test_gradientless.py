"""Which models DDP must look for weights without a gradient in."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from making import H100, case, llama

from generator.inputs.meta_device import make_config
from generator.model.families import find_family
from generator.techniques.base import find_technique
from generator.techniques.parallelism.ddp import GRADIENTLESS, UNREACHED

sys.path.insert(0, str(Path(__file__).parent / "model"))  # variants.py lies there

from small import small
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


def list_multimodal() -> list[str]:
    """Types whose class for causal models is made of a config with one for text and others inside."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as classes

    inside = {name: set(CONFIG_MAPPING[name].sub_configs or ()) for name in classes if name in CONFIG_MAPPING}
    return sorted(name for name, parts in inside.items() if parts & {"text_config", "vision_config", "audio_config"})


@pytest.mark.parametrize("model_type", list_multimodal() if find_spec("transformers") else [])
def test_what_no_text_reaches_is_named(model_type):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    try:
        model = transformers.AutoModelForCausalLM.from_config(
            make_config(configs(model_type)[0] if find_family(model_type) else small(model_type))
        )
        tokens = torch.randint(5, 60, (2, 8))
        model(input_ids=tokens, labels=tokens).loss.backward()
    except Exception as error:
        pytest.skip(f"no small model of it: {error}")
    unreached = any(weight.grad is None for weight in model.parameters() if weight.requires_grad)
    assert not unreached or model_type in UNREACHED | GRADIENTLESS


@pytest.mark.parametrize(
    ("model_type", "kind", "task", "train", "looks"),
    [
        ("llama", "decoder", "sft", "full", False),
        ("afmoe", "decoder", "sft", "full", True),
        ("afmoe", "decoder", "sft", "lora", False),
        ("gemma3", "decoder", "sft", "full", True),
        ("gemma3", "decoder", "sft", "lora", True),
        ("qwen3_5", "decoder", "sft", "full", False),
        ("qwen3_5", "decoder", "text-classification", "lora", True),
        ("t5gemma2", "encoder-decoder", "text-classification", "full", True),
    ],
)
def test_ddp_looks_for_weights_without_a_gradient_where_there_are_any(model_type, kind, task, train, looks):
    of = case(H100, replace(llama(), model_type=model_type, kind=kind), task=task, train=train, devices=2)
    (argument,) = find_technique("parallelism", "ddp").edits(of).training_arguments
    assert argument.code == str(looks)
