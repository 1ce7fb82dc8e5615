"""What loop.py writes of adapters: those of all layers, also where a process has some of them only."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("peft")

import torch
from leaves import load_leaf
from safetensors.torch import load_file


def make_model():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 96}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2))


FORMS = {
    "lora": {},
    "dora": {"use_dora": True},
    "rows of embeddings": {"trainable_token_indices": {"embed_tokens": [5, 90], "lm_head": [5, 90]}},
    "a layer as a whole": {"modules_to_save": ["lm_head"]},
}
"""What config.yaml may say under lora"""


@pytest.mark.parametrize("form", FORMS)
def test_adapters_of_layers_that_another_process_has(form, tmp_path, monkeypatch):
    from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict

    monkeypatch.setitem(sys.modules, "parallel", SimpleNamespace(gloo_group=lambda: None))
    leaf = load_leaf("divided_states")
    model = get_peft_model(make_model(), LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", **FORMS[form]))
    names = set(get_peft_model_state_dict(model))
    trained = {name: torch.randn_like(w) for name, w in model.named_parameters() if w.requires_grad}
    model.load_state_dict(trained, strict=False)
    del model.get_base_model().model.layers[1]
    others = {name: weight for name, weight in trained.items() if ".layers.1." in name}
    assert 0 < len(others) < len(trained)

    def gather(own, into, group):
        into[:] = [own, others]

    processes = SimpleNamespace(
        get_world_size=lambda: 2,
        get_rank=lambda: 0,
        all_gather_object=lambda into, own, group: into.__setitem__(slice(None), [own, list(others)]),
        gather_object=gather,
        barrier=lambda group: None,
    )
    monkeypatch.setattr(leaf, "dist", processes)
    leaf.save_adapter(tmp_path, model, SimpleNamespace(save_pretrained=lambda folder: None))

    assert set(load_file(tmp_path / "adapter_model.safetensors")) == names
    loaded = dict(PeftModel.from_pretrained(make_model(), tmp_path).named_parameters())
    assert all(loaded[name].equal(weight) for name, weight in trained.items())
    assert not any(weight.requires_grad for weight in loaded.values())  # as PEFT's own files, for inference
