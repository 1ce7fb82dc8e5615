"""What a resumed run goes on with, and what a run ends with: every weight of the checkpoint, whatever names it is saved under."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace as Values

import pytest

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "model"))  # variants.py lies there

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel, Trainer, TrainingArguments
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from variants import configs

from generator.inputs.meta_device import make_config
from generator.model.families import GROUPS, load_families

TYPES = [name for group in GROUPS for name in load_families(group) if name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES]


def make_model(model_type: str, **changes) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(make_config(configs(model_type)[0] | changes))
    for weight in model.parameters():
        weight.data.normal_()
    return model


def save(model: PreTrainedModel, folder: Path) -> Trainer:
    """As Trainer writes a checkpoint; then the model has other weights than it."""
    trainer = Trainer(model, TrainingArguments(str(folder), use_cpu=True, report_to="none"))
    trainer.save_model()
    for weight in model.parameters():
        weight.data.zero_()
    return trainer


@pytest.mark.parametrize("model_type", TYPES)
def test_every_weight_of_a_checkpoint_is_read(load, tmp_path, model_type):
    """Trainer itself read 24 of these types without their experts, or without other weights that are saved otherwise."""
    load("loaded_weights")
    model = make_model(model_type)
    expected = {name: weight.clone() for name, weight in model.state_dict().items()}
    trainer = save(model, tmp_path)
    load("saved_weights").load_all_weights(trainer)
    trainer._load_from_checkpoint(str(tmp_path))
    assert [name for name, weight in model.state_dict().items() if not torch.equal(weight, expected[name])] == []


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_whose_names_are_saved_is_read_file_by_file(load, tmp_path, monkeypatch, tied):
    """And a tied weight, which a checkpoint holds once, is no missing one; it stays tied."""
    load("loaded_weights")
    model = make_model("llama", tie_word_embeddings=tied)
    assert not get_model_conversion_mapping(model, add_legacy=False)
    expected = model.get_input_embeddings().weight.clone()
    model.save_pretrained(tmp_path, max_shard_size=model.num_parameters())
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    for weight in model.parameters():
        weight.data.zero_()
    monkeypatch.setattr(PreTrainedModel, "from_pretrained", None)
    load("saved_weights").read_weights(model, str(tmp_path))
    assert torch.equal(model.get_input_embeddings().weight, expected)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied


@pytest.mark.parametrize(("model_type", "part"), [("llama", "layers.1."), ("qwen3_moe", "experts.0.")])
def test_a_checkpoint_that_lacks_weights_ends_the_process(load, tmp_path, model_type, part):
    load("loaded_weights")
    model = make_model(model_type)
    save(model, tmp_path)
    path = tmp_path / "model.safetensors"
    kept = {name: tensor for name, tensor in load_file(path).items() if part not in name}
    save_file(kept, path, metadata={"format": "pt"})
    with pytest.raises((SystemExit, RuntimeError)):
        load("saved_weights").read_weights(model, str(tmp_path))


def test_the_best_model_is_read_so_too(load, tmp_path):
    load("loaded_weights")
    model = make_model("qwen3_moe")
    expected = {name: weight.clone() for name, weight in model.state_dict().items()}
    trainer = save(model, tmp_path)
    load("saved_weights").load_all_weights(trainer)
    trainer.state = Values(best_model_checkpoint=str(tmp_path))
    trainer._load_best_model()
    assert all(torch.equal(weight, expected[name]) for name, weight in model.state_dict().items())
