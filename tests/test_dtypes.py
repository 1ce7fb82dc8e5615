"""A config's dtype is one that Transformers loads a model in, or it is refused with the list."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from generator.errors import SourceError
from generator.inputs.config_checks import load_config
from generator.inputs.dtypes import KNOWN

LLAMA = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 32,
}


def write(tmp_path, **changes):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | changes))
    return tmp_path / "config.json"


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_known_can_be_loaded_in(tmp_path, name):
    path = write(tmp_path, torch_dtype=name)
    assert load_config(path)["torch_dtype"] == name
    assert AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path)).dtype == getattr(torch, name)


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
@pytest.mark.parametrize(
    "name", ["banana", "bf16", "fp8", "float8_e4m3fn", "int8", "auto", "torch.bfloat16", "x" * 5000]
)
def test_what_is_refused_cannot_be_loaded(tmp_path, key, name):
    path = write(tmp_path, **{key: name})
    with pytest.raises(SourceError, match=f"{key} is '.*known are bfloat16, float16, float32") as error:
        load_config(path)
    assert len(str(error.value)) < 400 + len(str(path))
    with pytest.raises((AttributeError, TypeError, ValueError)):
        AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path))


def test_a_part_of_a_model_is_looked_at_and_a_format_is_not(tmp_path):
    with pytest.raises(SourceError, match=r"text_config\.dtype is 'banana'"):
        load_config(write(tmp_path, text_config={"dtype": "banana"}))
    quantized = {"quant_method": "compressed-tensors", "dtype": "float8_e4m3fn"}
    assert (
        load_config(write(tmp_path, quantization_config=quantized))["quantization_config"]["dtype"] == "float8_e4m3fn"
    )
