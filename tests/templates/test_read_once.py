"""What a process that reads no weights holds in their place (FSDP2)."""

from __future__ import annotations

from pathlib import Path

import pytest
from leaves import load_leaf

pytest.importorskip("transformers")
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

WIDE = 1 << 26
"""elements of a weight: a quarter of a GiB"""


def read_resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


@pytest.mark.parametrize("tied", [True, False])
def test_each_weight_has_a_place_of_its_own(tmp_path, tied):
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(**shape, vocab_size=100, tie_word_embeddings=tied)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, device_map="meta")
    with torch.device("meta"):
        model.model.register_buffer("balance", torch.zeros(4))

    load_leaf("read_once").hold_places(model)

    weights = list(model.parameters())
    assert {tensor.device.type for tensor in (*weights, *model.buffers())} == {"cpu"}
    assert len({weight.data_ptr() for weight in weights}) == len(weights)
    assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) is tied
    assert "model.balance" in model.state_dict()


def test_places_take_no_memory():
    with torch.device("meta"):
        layer = torch.nn.Linear(WIDE, 1)
    before = read_resident_bytes()
    load_leaf("read_once").hold_places(layer)
    assert layer.weight.numel() == WIDE and read_resident_bytes() - before < WIDE
