"""A model of which a part is not in its files is no model: Transformers would make the part up."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys

import pytest
from engine_projects import drop_weights
from leaves import load_leaf
from projects import render_small_project

pytest.importorskip("torch")
pytest.importorskip("transformers")
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 50}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL)),
    "tied": lambda: LlamaForCausalLM(LlamaConfig(**SMALL, tie_word_embeddings=True)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=50, n_positions=16)),
    "bert": lambda: BertForMaskedLM(BertConfig(**SMALL)),
}


@pytest.fixture
def saved(tmp_path):
    """A function that saves a model by its name, and gives its folder."""

    def save(name: str):
        MODELS[name]().save_pretrained(tmp_path / name)
        return tmp_path / name

    return save


def check(auto, folder, **options):
    model, loading = auto.from_pretrained(folder, output_loading_info=True, ignore_mismatched_sizes=True)
    load_leaf("loaded_weights").check_loaded(model, loading, **options)


@pytest.mark.parametrize("name", ["llama", "tied", "gpt2"])
def test_a_whole_model_is_taken_and_a_head_that_is_the_embedding_is_there(saved, name):
    check(AutoModelForCausalLM, saved(name))


@pytest.mark.parametrize("part", ["lm_head", "layers.1.", "embed_tokens", "norm"])
def test_what_is_missing_is_named_and_nothing_is_made_up(saved, part):
    folder = saved("llama")
    drop_weights(folder, part)
    with pytest.raises(SystemExit, match=part):
        check(AutoModelForCausalLM, folder)


def test_more_layers_in_the_config_than_in_the_files(saved):
    folder = saved("tied")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3, "layer_types": None}))
    with pytest.raises(SystemExit, match=r"lacks 9 weights .*layers\.2\."):
        check(AutoModelForCausalLM, folder)


def test_names_of_a_compiled_model_are_not_those_of_the_model(saved):
    folder = saved("llama")
    path = folder / "model.safetensors"
    save_file(
        {f"_orig_mod.{name}": tensor for name, tensor in load_file(path).items()}, path, metadata={"format": "pt"}
    )
    with pytest.raises(SystemExit, match="lacks 21 weights"):
        check(AutoModelForCausalLM, folder)


@pytest.mark.parametrize("name", ["llama", "tied", "gpt2", "bert"])
def test_the_head_of_a_classifier_is_new(saved, name):
    """And BERT's pooler, which no language model has."""
    check(AutoModelForSequenceClassification, saved(name), adds_head=True)


@pytest.fixture
def logged():
    """What Transformers says as it loads."""
    said = io.StringIO()
    logger, handler = logging.getLogger("transformers.modeling_utils"), logging.StreamHandler(said)
    logger.addHandler(handler)
    before = list(logger.filters)
    yield said
    logger.filters[:] = before
    logger.removeHandler(handler)


def test_a_head_that_the_adapter_has_is_not_reported_as_missing(saved, logged):
    """A trained classifier was introduced by "consider training on your downstream task"."""
    folder = saved("llama")
    AutoModelForSequenceClassification.from_pretrained(folder)
    assert "LOAD REPORT" in logged.getvalue()
    logged.truncate(0)
    load_leaf("loaded_weights").hide_report()
    AutoModelForSequenceClassification.from_pretrained(folder)
    assert "REPORT" not in logged.getvalue()


@pytest.mark.parametrize(
    ("name", "part", "auto"),
    [
        ("llama", "layers.1.", AutoModelForSequenceClassification),
        ("bert", "layer.1.", AutoModelForSequenceClassification),
        ("bert", "layer.1.", AutoModel),
        ("llama", "layers.1.", AutoModel),
    ],
)
def test_the_rest_of_a_classifier_is_not(saved, name, part, auto):
    folder = saved(name)
    drop_weights(folder, part)
    with pytest.raises(SystemExit, match=part):
        check(auto, folder, adds_head=True)


def check_resized(auto, folder, **options):
    model, loading = auto.from_pretrained(
        folder, output_loading_info=True, ignore_mismatched_sizes=True, **options.pop("labels", {})
    )
    load_leaf("loaded_weights").check_loaded(model, loading, **options)
    return model


@pytest.mark.parametrize(("kind", "config"), [("bert", BertConfig), ("llama", LlamaConfig)])
def test_a_published_head_for_other_labels_is_replaced_and_said(tmp_path, capsys, kind, config):
    AutoModelForSequenceClassification.from_config(config(**SMALL, num_labels=2)).save_pretrained(tmp_path)
    labels = {"num_labels": 3}
    model = check_resized(AutoModelForSequenceClassification, tmp_path, labels=labels, adds_head=True)
    head = model.score if kind == "llama" else model.classifier
    assert head.weight.shape[0] == 3 and head.weight.isfinite().all()
    assert "head of 2 labels is left out, here there are 3" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"\[2\b.* and \[3\b"):  # one that answers has its own
        check_resized(AutoModelForSequenceClassification, tmp_path, labels=labels)


def test_weights_of_another_size_than_the_config_says_end_in_a_line(saved):
    folder = saved("llama")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 60}))
    with pytest.raises(
        SystemExit, match=r"embed_tokens\.weight is \[50, 16\] in its files, and \[60, 16\] by its config"
    ):
        check_resized(AutoModelForCausalLM, folder)


def test_a_classifier_that_answers_has_its_head(saved):
    with pytest.raises(SystemExit, match="score"):
        check(AutoModelForSequenceClassification, saved("llama"))
    check(AutoModel, saved("bert"), adds_head=True)


@pytest.mark.parametrize("name", ["llama", "tied", "gpt2"])
def test_files_are_looked_at_before_a_converter_reads_them(saved, name):
    folder, leaf = saved(name), load_leaf("loaded_weights")
    leaf.check_files(folder)
    drop_weights(folder, "h.1." if name == "gpt2" else "layers.1.")
    with pytest.raises(SystemExit, match=r"that its config\.json tells of: "):
        leaf.check_files(folder)


def test_infer_does_not_answer_with_what_was_made_up(saved, tmp_path, load):
    """`--model` takes any folder."""
    folder = saved("llama")
    load("tokenizer").train_tokenizer(["the lazy dog"] * 9, tmp_path / "words", 50).save_pretrained(folder)
    drop_weights(folder, "layers.1.")
    project = render_small_project(tmp_path / "made")
    command = [sys.executable, "infer.py", "--model", str(folder)]
    (folder / "run.json").write_text("{}")
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1 and "lacks 9 weights that its config.json tells of" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("form", [{}, {"use_dora": True}, {"use_rslora": True}], ids=["lora", "dora", "rslora"])
def test_an_adapter_lacks_none_either(saved, tmp_path, form):
    """Its outputs are those that PEFT trained; DoRA's magnitudes have another name in the file than in the model."""
    peft = pytest.importorskip("peft")
    base = AutoModelForCausalLM.from_pretrained(saved("llama"))
    adapter = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False, **form)
    adapted = peft.get_peft_model(base, adapter).eval()
    for name, weight in adapted.named_parameters():
        if "lora_magnitude_vector" in name:  # as trained ones: a new one makes what the base has
            weight.data *= 2
    adapted.save_pretrained(tmp_path / "run")
    load_adapter, tokens = load_leaf("loaded_weights").load_adapter, torch.arange(3, 9)[None]

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "llama")
    load_adapter(model, tmp_path / "run")
    assert torch.equal(model.eval()(tokens).logits, adapted(tokens).logits)
    drop_weights(tmp_path / "run", "v_proj", "adapter_model.safetensors")
    with pytest.raises(SystemExit, match=r"lacks \d weights that its adapter_config\.json tells of: .*v_proj"):
        load_adapter(AutoModelForCausalLM.from_pretrained(tmp_path / "llama"), tmp_path / "run")


def test_an_adapter_keeps_the_names_of_the_model_in_memory(tmp_path):
    """Transformers renames them once more as if they were of Laguna's published files: its adapters were not found."""
    peft = pytest.importorskip("peft")
    from transformers import LagunaConfig

    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    }
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": 2}
    config = LagunaConfig(**sizes, **heads, num_experts=4, num_experts_per_tok=2, vocab_size=64)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    adapter = peft.LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
    adapted, tokens = peft.get_peft_model(base, adapter).eval(), torch.arange(3, 9)[None]
    adapted.save_pretrained(tmp_path / "run")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    load_leaf("loaded_weights").load_adapter(model, tmp_path / "run")
    assert any("shared_experts" in name and "lora_A" in name for name, _ in model.named_parameters())
    assert torch.equal(model.eval()(tokens).logits, adapted(tokens).logits)
