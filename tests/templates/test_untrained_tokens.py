"""Tokens that were added to a model and never trained: adapters alone would leave them alike."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
pytest.importorskip("peft")
import peft
import torch
from leaves import load_leaf
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
)

from generator.case.request import Request
from generator.pipeline import document_request

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SIZES = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 300,
}
TOKENIZER = SimpleNamespace(convert_ids_to_tokens=lambda tokens: [f"<{token}>" for token in tokens])


def make_model(*, tied: bool):
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=tied, pad_token_id=0))


def find_advice(model, capsys, tokens: list[int], **lora) -> str:
    rows = [{"input_ids": tokens}, {"input_ids": [5, 6]}]
    load_leaf("untrained_tokens").warn_of_untrained(model, TOKENIZER, rows, lora)
    return capsys.readouterr().out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tokens_as_a_resize_leaves_them_and_zeros_are_named_and_trained_ones_are_not(capsys, dtype):
    model = make_model(tied=True)
    with torch.no_grad():
        model.get_input_embeddings().weight[7] = 0
    model.resize_token_embeddings(303)
    model = model.to(dtype)
    assert find_advice(model, capsys, list(range(1, 300))).startswith("nobody trained the embeddings of '<7>', which")
    assert "trainable_token_indices: [7, 300, 302]" in find_advice(model, capsys, [3, 302, 7, 300])
    assert not find_advice(model, capsys, [3, 4]), "a token that no text has is none of the data"


def test_rows_that_the_adapter_trains_are_not_named(capsys):
    """Whoever wrote the advised line into config.yaml was given it again."""
    model = make_model(tied=False)
    model.resize_token_embeddings(303)
    assert not find_advice(model, capsys, [301, 302], trainable_token_indices=[301, 302])
    both = {"embed_tokens": [301, 302], "lm_head": [301]}
    assert "of '<302>'," in find_advice(model, capsys, [301, 302], trainable_token_indices=both)


def test_one_process_says_it(capsys, monkeypatch):
    model = make_model(tied=True)
    model.resize_token_embeddings(301)
    monkeypatch.setenv("RANK", "1")
    assert not find_advice(model, capsys, [300])
    assert not find_advice(model.to("meta"), capsys, [300]), "under FSDP2 the others load no weights of their own"


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_what_a_classifier_is_advised_trains_these_rows_and_classifies_and_merges(tmp_path, capsys, kind):
    """It has no output embeddings, and a head of its own that PEFT trains and saves."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **SIZES, num_labels=3, pad_token_id=0)
    base = AutoModelForSequenceClassification.from_config(config)
    base.resize_token_embeddings(302)
    base.save_pretrained(tmp_path / "base")
    tokens = torch.tensor([[5, 300, 8, 301]])
    indices = ast.literal_eval(find_advice(base, capsys, tokens[0].tolist()).partition("trainable_token_indices: ")[2])
    assert indices == [300, 301]
    adapter = peft.LoraConfig(task_type="SEQ_CLS", target_modules="all-linear", trainable_token_indices=indices)
    model = peft.get_peft_model(base, adapter)
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=0.1)
    for _ in range(3):
        model(tokens, labels=torch.tensor([1])).loss.backward()
        optimizer.step()
    model.eval().save_pretrained(tmp_path / "run")
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "base")
    load_leaf("loaded_weights").load_adapter(loaded, tmp_path / "run")
    trained = model(tokens).logits
    assert torch.allclose(loaded.eval()(tokens).logits, trained, atol=1e-6)
    assert torch.allclose(model.merge_and_unload()(tokens).logits, trained, atol=1e-5)


@pytest.mark.parametrize("tied", [True, False])
def test_what_is_advised_trains_these_rows_and_infers_and_merges(tmp_path, capsys, tied):
    """An adapter whose head is the embedding has the rows once, and infer.py missed those of the head."""
    base = make_model(tied=tied)
    base.resize_token_embeddings(302)
    base.save_pretrained(tmp_path / "base")
    tokens = torch.tensor([[5, 300, 8, 301]])
    advice = find_advice(base, capsys, tokens[0].tolist())
    indices = ast.literal_eval(advice.partition("trainable_token_indices: ")[2])
    adapter = peft.LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", trainable_token_indices=indices)
    model = peft.get_peft_model(base, adapter)
    before = {name: weight.clone() for name, weight in base.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(3):
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
    changed = {name.rpartition(".")[0] for name, weight in base.named_parameters() if not weight.equal(before[name])}
    assert sum("trainable_tokens_delta" in name for name in changed) == (1 if tied else 2)
    model.eval().save_pretrained(tmp_path / "run")

    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    load_leaf("loaded_weights").load_adapter(loaded, tmp_path / "run")
    assert torch.allclose(loaded.eval()(tokens).logits, model(tokens).logits, atol=1e-6)
    trained = model(tokens).logits
    assert torch.allclose(model.merge_and_unload()(tokens).logits, trained, atol=1e-5)


@pytest.mark.parametrize(
    ("task", "parallelism", "names"),
    [
        ("sft", "ddp", True),
        ("sft", "zero2", True),
        ("sft", "zero3", False),
        ("sft", "tensor", False),
        ("sft", "context", True),
        ("sft", "context-fsdp2", False),
        ("sft", "pipeline", False),
        ("text-classification", "ddp", True),
    ],
)
def test_a_project_looks_for_them_where_its_first_process_has_the_whole_model(task, parallelism, names):
    asked = Request(
        model="meta-llama/Llama-3.1-8B", config=str(EXAMPLES / "models/llama-3.1-8b.json"), hardware="2xh100-sxm-80gb",
        data="HuggingFaceH4/no_robots", task=task, train="lora", pins=(("parallelism", parallelism),), offline=True,
    )  # fmt: skip
    assert ("untrained_tokens" in document_request(asked, name="p").modules) == names
