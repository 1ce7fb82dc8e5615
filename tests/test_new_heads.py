"""A classifier's new head is learned whole and saved: an adapter beside random weights would answer otherwise each time it is loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from making import case as make_case
from making import cpu_device, llama

pytest.importorskip("peft")
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, BitsAndBytesConfig

from generator.model.classifiers import CLASSIFIED, READS_END
from generator.techniques.base import find_technique
from generator.techniques.trained.lora import HEADS

SIZES = {
    **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100},
    **{"max_position_embeddings": 64, "pad_token_id": 1},
}
OWN = {
    "distilbert": {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4, "vocab_size": 100, "pad_token_id": 1},
    "flaubert": {"emb_dim": 32, "n_layers": 2, "n_heads": 4, "vocab_size": 100},
    "roc_bert": SIZES | {"pronunciation_vocab_size": 50, "shape_vocab_size": 50},
    "xlm": {"emb_dim": 32, "n_layers": 2, "n_heads": 4, "vocab_size": 100},
    "xlnet": {"d_model": 32, "d_inner": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100},
}
BART = {
    **{
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
    },
    **{"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "vocab_size": 100, "max_position_embeddings": 64},
    **{"pad_token_id": 1, "eos_token_id": 2},
}
T5 = {"d_model": 32, "d_ff": 64, "d_kv": 8, "num_layers": 2, "num_heads": 4, "vocab_size": 100}
T5 |= {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
OWN |= {name: T5 if "t5" in name else BART for name in READS_END}
DECODERS = ("gpt2", "llama", "modernbert-decoder")
OTHERS = ("electra", "gpt2", "llama", "mpnet", "roberta")
PACKED = ("albert", "bart", "bert", "deberta-v2", "distilbert", "electra", "roberta", "t5")
TOKENS = torch.arange(3, 19).reshape(2, 8)
TOKENS[:, -1] = 2  # the end token


def save_base(model_type: str, folder: Path) -> Path:
    """A checkpoint with neither head nor pooler, as of a masked language model."""
    torch.manual_seed(0)
    model = AutoModel.from_config(AutoConfig.for_model(model_type, **OWN.get(model_type, SIZES)))
    weights = {name: weight for name, weight in model.state_dict().items() if not name.startswith("pooler.")}
    model.save_pretrained(folder, state_dict=weights)
    return folder


def list_edits(model_type: str, train: str):
    kind = "decoder" if model_type in DECODERS else "encoder-decoder" if model_type in READS_END else "encoder"
    spec = replace(llama(), model_type=model_type, kind=kind)  # techniques ask no more of it
    of = make_case(cpu_device(), spec, task="text-classification", train=train, seq_len=8)
    return find_technique("trained", train).edits(of)


def build(model_type: str, folder: Path, train: str, seed: int):
    """The model, and its adapter, as train.py builds them."""
    names = {
        "LoraConfig": LoraConfig,
        "CONFIG": {"lora": {"r": 2}},
        "BitsAndBytesConfig": BitsAndBytesConfig,
        "torch": torch,
    }
    for statement in list_edits(model_type, train).setup:
        exec(statement, names)
    torch.manual_seed(seed)
    packed = {"quantization_config": names["quantization"]} if train == "qlora" else {}
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=3, **packed)
    model.config.pad_token_id = 1
    return model, names["adapter"]


@pytest.mark.parametrize("model_type", sorted({*HEADS, *OTHERS} - {"modernvbert", "ultravbert"}))
def test_what_is_loaded_answers_as_what_was_trained(tmp_path, model_type):
    assert model_type in CLASSIFIED
    base = save_base(model_type, tmp_path / "base")
    trained = get_peft_model(*build(model_type, base, "lora", seed=1)).eval()
    trained.save_pretrained(tmp_path / "run")
    loaded, _ = build(model_type, base, "lora", seed=2)
    assert not loaded.load_adapter(str(tmp_path / "run")).missing_keys
    assert torch.equal(loaded.eval()(TOKENS).logits, trained(TOKENS).logits)


@pytest.mark.parametrize("model_type", PACKED)
def test_a_new_head_is_not_packed(tmp_path, model_type):
    pytest.importorskip("bitsandbytes")
    base = save_base(model_type, tmp_path / "base")
    trained = get_peft_model(*build(model_type, base, "qlora", seed=1)).train()
    trained(TOKENS, labels=torch.tensor([0, 1])).loss.backward()
    assert all(
        weight.grad is not None
        for name, weight in trained.named_parameters()
        if ("classifier" in name or "classification_head" in name) and weight.requires_grad
    )
