"""Tokens that were added to a model and never trained: adapters alone would leave them alike."""

from __future__ import annotations

import ast
import shutil
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
from generator.techniques.trained.lora import BESIDE

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


@pytest.fixture
def find_advice(load, tmp_path, capsys):
    """What is printed of a model that is on the disk."""

    def find(model, tokens: list[int], *, beside: tuple[str, ...] = BESIDE, **lora) -> str:
        model.save_pretrained(
            tmp_path / "of", max_shard_size="20KB"
        )  # the embedding and the head in files of their own
        rows = [{"input_ids": tokens}, {"input_ids": [5, 6]}]
        given = tmp_path / "of", {"lora": lora}, TOKENIZER, rows, beside
        leaf = load("untrained_tokens")
        capsys.readouterr()
        leaf.warn_of_untrained(model, *given)
        shutil.rmtree(tmp_path / "of")
        return capsys.readouterr().out

    return find


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tokens_as_a_resize_leaves_them_and_zeros_are_named_and_trained_ones_are_not(find_advice, dtype):
    model = make_model(tied=True)
    with torch.no_grad():
        model.get_input_embeddings().weight[7] = 0
    model.resize_token_embeddings(303)
    model = model.to(dtype)
    assert find_advice(model, list(range(1, 300))).startswith("nobody trained the embeddings of '<7>', which")
    assert "trainable_token_indices: [7, 300, 302]" in find_advice(model, [3, 302, 7, 300])
    assert not find_advice(model, [3, 4]), "a token that no text has is none of the data"


def test_rows_that_the_adapter_trains_are_not_named(find_advice):
    """Whoever wrote the advised line into config.yaml was given it again."""
    model = make_model(tied=False)
    model.resize_token_embeddings(303)
    assert not find_advice(model, [301, 302], trainable_token_indices=[301, 302])
    both = {"embed_tokens": [301, 302], "lm_head": [301]}
    advice = find_advice(model, [301, 302], trainable_token_indices=both)
    assert "of '<302>'," in advice and "{'embed_tokens': [301, 302], 'lm_head': [301, 302]}" in advice


@pytest.mark.parametrize("tied", [True, False])
def test_what_is_advised_keeps_what_is_asked_for_already(find_advice, tied):
    """In the place of the line that stood there it took away the rows of that."""
    model = make_model(tied=tied)
    model.resize_token_embeddings(303)
    advice = find_advice(model, [301, 302], trainable_token_indices=[301])
    assert "'<302>', which" in advice and ("indices: [301, 302]" if tied else "'lm_head': [301, 302]") in advice
    advice = find_advice(model, [302], beside=("modules_to_save",), modules_to_save=["score"])
    assert "modules_to_save: [score, embed_tokens, lm_head]" in advice


def test_one_process_says_it(find_advice, monkeypatch):
    model = make_model(tied=True)
    model.resize_token_embeddings(301)
    monkeypatch.setenv("RANK", "1")
    assert not find_advice(model, [300])


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_what_a_classifier_is_advised_trains_these_rows_and_classifies_and_merges(tmp_path, find_advice, kind):
    """It has no output embeddings, and a head of its own that PEFT trains and saves."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **SIZES, num_labels=3, pad_token_id=0)
    base = AutoModelForSequenceClassification.from_config(config)
    base.resize_token_embeddings(302)
    base.save_pretrained(tmp_path / "base")
    tokens = torch.tensor([[5, 300, 8, 301]])
    indices = ast.literal_eval(find_advice(base, tokens[0].tolist()).partition("trainable_token_indices: ")[2])
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
def test_what_is_advised_trains_these_rows_and_infers_and_merges(tmp_path, find_advice, tied):
    """An adapter whose head is the embedding has the rows once, and infer.py missed those of the head."""
    base = make_model(tied=tied)
    base.resize_token_embeddings(302)
    base.save_pretrained(tmp_path / "base")
    tokens = torch.tensor([[5, 300, 8, 301]])
    advice = find_advice(base, tokens[0].tolist())
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
    ("task", "parallelism", "beside"),
    [
        ("sft", "ddp", BESIDE),
        ("sft", "zero2", BESIDE),
        ("sft", "zero3", ("modules_to_save",)),
        ("sft", "fsdp2", ("modules_to_save",)),
        ("sft", "tensor", ()),
        ("sft", "context", BESIDE),
        ("sft", "context-fsdp2", ()),
        ("sft", "pipeline", BESIDE),
        ("text-classification", "ddp", BESIDE),
    ],
)
def test_a_project_looks_for_them_however_it_is_divided_and_advises_what_works_there(task, parallelism, beside):
    """What was advised ended in a traceback of mixed tensors under FSDP2; where the embedding is divided nothing was printed."""
    asked = Request(
        model="meta-llama/Llama-3.1-8B", config=str(EXAMPLES / "models/llama-3.1-8b.json"), hardware="2xh100-sxm-80gb",
        data="HuggingFaceH4/no_robots", task=task, train="lora", pins=(("parallelism", parallelism),), offline=True,
    )  # fmt: skip
    document = document_request(asked, name="p")
    (warning,) = (line for line in document.edits.after_model if "warn_of_untrained(" in line)
    refused = [line for line in document.edits.setup if "refuse_beside(" in line]
    written = str(beside).replace("'", '"')
    assert warning.endswith("train_dataset)" if beside == BESIDE else f"train_dataset, {written})")
    assert refused == ([] if beside == BESIDE else [f'refuse_beside(CONFIG["lora"], {written})'])
    assert "untrained_tokens" in document.modules


@pytest.mark.parametrize("beside", [(), ("modules_to_save",), BESIDE])
def test_what_no_division_of_the_plan_trains_is_neither_advised_nor_begun(find_advice, load, beside):
    model = make_model(tied=False)
    model.resize_token_embeddings(303)
    printed = find_advice(model, [3, 302], beside=beside)
    assert printed.count("trainable_token_indices: {'embed_tokens': [302], 'lm_head': [302]}") == (beside == BESIDE)
    assert printed.count("modules_to_save: [embed_tokens, lm_head]") == (beside == ("modules_to_save",))
    assert printed.count("--pin parallelism=ddp, trains these too") == (not beside)
    assert not find_advice(model, [3, 302], modules_to_save=["embed_tokens", "lm_head"])
    refuse, asked = load("untrained_tokens").refuse_beside, {"r": 8, "trainable_token_indices": [302]}
    refuse({"r": 8}, beside)
    if beside == BESIDE:
        return refuse(asked, beside)
    with pytest.raises(SystemExit, match="PEFT has no trainable_token_indices for layers that this plan divides"):
        refuse(asked, beside)


@pytest.mark.parametrize("tied", [True, False])
def test_losses_of_chunks_and_of_trl_train_the_rows_of_the_head(load, tied):
    """The first kept the head of before the adapter, whose rows stayed; TRL's asks for its bias, and ended in an AttributeError."""
    base, tokens = make_model(tied=tied), torch.tensor([[5, 7, 8, 9]])
    indices = [7, 9] if tied else {"embed_tokens": [7, 9], "lm_head": [7, 9]}
    load("chunked_loss").chunk_loss(base)
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", trainable_token_indices=indices))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "trainable_tokens_delta" in name:
                weight += 1
    chunked = model(input_ids=tokens, labels=tokens).loss
    expected = LlamaForCausalLM.forward(base, input_ids=tokens, labels=tokens).loss
    assert chunked.item() == pytest.approx(expected.item(), rel=1e-5)
    load("untrained_tokens").complete_head(model)
    assert model.get_output_embeddings().bias is None
