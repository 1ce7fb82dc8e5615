"""The model of config.yaml as the plan has it: how its weights are stored, what computes attention."""

import torch
from torchao.quantization import Int8WeightOnlyConfig
from transformers import AutoModelForCausalLM, PreTrainedModel, TorchAoConfig

from compiler import check_compilers
from loaded_weights import check_loaded
from machine import check_machine
from sources import find_source


def load_model(config: dict) -> PreTrainedModel:
    check_machine(config["machine"])  # before a byte of the weights is read
    check_compilers("g++", "gcc")
    source = find_source(config, "model")
    quantization = TorchAoConfig(Int8WeightOnlyConfig())
    model, loading = AutoModelForCausalLM.from_pretrained(
        source,
        revision=config["revision"],
        quantization_config=quantization,
        dtype=torch.bfloat16,
        attn_implementation="sdpa",
        device_map="cuda",
        output_loading_info=True,
        ignore_mismatched_sizes=True,
        use_safetensors=True,
        trust_remote_code=False,
    )
    check_loaded(model, loading)
    return model
