"""Loss and gradients without the mask of padding are those with it, for every model type that is trained so."""

from __future__ import annotations

from unittest import mock

import pytest
from leaves import load_leaf
from making import case, llama

from generator.case.case import Case
from generator.techniques.packing.group_by_length import GroupByLength
from generator.techniques.packing.padded import Padded
from generator.techniques.padding import MASKLESS, attends_without_mask

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 96,
    "max_position_embeddings": 64,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "n_inner": 48,
    "dff": 48,
    "ffn_dim": 48,
    "word_embed_proj_dim": 32,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
LENGTHS = (16, 11, 5)
QUICK = ("llama", "mistral", "gpt2", "opt")


def build_tiny_model(model_type: str, **more):
    """Random weights, no dropout."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    known = {**AutoConfig.for_model(model_type).to_dict(), **type(AutoConfig.for_model(model_type)).attribute_map}
    sizes = {name: value for name, value in SIZES.items() if name in known}
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **sizes, **{k: v for k, v in more.items() if k in known})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def make_padded_batch() -> dict:
    """As TRL's collator pads it: on the right, to a multiple of 8, with the first tokens not learned from."""
    import torch
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    generator = torch.Generator().manual_seed(1)
    rows = [torch.randint(2, 96, (length,), generator=generator).tolist() for length in LENGTHS]
    examples = [{"input_ids": row, "labels": [-100, -100, *row[2:]]} for row in rows]
    return DataCollatorForLanguageModeling(pad_token_id=0, pad_to_multiple_of=8)(examples)


def learn(model, batch: dict) -> tuple[float, dict, list[bool]]:
    """Loss, gradients, and for each call of SDPA whether it had a mask."""
    import torch
    from torch.nn import functional as F

    masked, function = [], F.scaled_dot_product_attention

    def watch(query, key, value, attn_mask=None, *args, **kwargs):
        masked.append(attn_mask is not None)
        return function(query, key, value, attn_mask, *args, **kwargs)

    model.zero_grad()
    torch.manual_seed(2)
    with mock.patch.object(F, "scaled_dot_product_attention", watch):
        loss = model(**batch, use_cache=False).loss
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return loss.item(), gradients, masked


def check_equal(model_type: str, **more) -> list[bool]:
    import torch

    model, batch = build_tiny_model(model_type, **more), make_padded_batch()
    loss, gradients, masked = learn(model, batch)
    assert all(masked) and masked
    load_leaf("padding").drop_padding_mask(model)
    loss_without, gradients_without, masked_without = learn(model, batch)
    assert loss_without == pytest.approx(loss, abs=1e-6)
    assert gradients.keys() == gradients_without.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradients_without[name], gradient, rtol=1e-4, atol=1e-6)
    return masked_without


@pytest.mark.parametrize("model_type", QUICK)
def test_equal_without_the_mask(model_type):
    assert not any(check_equal(model_type))


@pytest.mark.slow
@pytest.mark.parametrize("model_type", sorted(MASKLESS - set(QUICK)))
def test_equal_without_the_mask_for_every_type(model_type):
    assert not any(check_equal(model_type))


def test_a_window_keeps_its_mask_and_the_values():
    assert all(check_equal("mistral", sliding_window=4))


def test_a_mask_that_matters_is_seen():
    """Padding on the left: the same comparison finds the difference."""
    model, batch = build_tiny_model("llama"), make_padded_batch()
    batch = {name: tensor.flip(1) for name, tensor in batch.items()}
    loss, _, _ = learn(model, batch)
    load_leaf("padding").drop_padding_mask(model)
    assert learn(model, batch)[0] != pytest.approx(loss, abs=1e-3)


def test_generation_keeps_its_mask():
    import torch

    model = build_tiny_model("llama").eval()
    ids, mask = torch.tensor([[0, 0, 5, 6]]), torch.tensor([[0, 0, 1, 1]])
    before = model.generate(ids, attention_mask=mask, max_new_tokens=3, do_sample=False)
    load_leaf("padding").drop_padding_mask(model)
    assert torch.equal(model.generate(ids, attention_mask=mask, max_new_tokens=3, do_sample=False), before)


def test_label_smoothing_trains_without_the_mask_too():
    """Trainer takes the labels out of the batch for it: the first step was not as planned, and ended the run."""
    model, batch = build_tiny_model("llama").train(), make_padded_batch()
    kept = []
    load_leaf("padding").drop_padding_mask(model)
    model.register_forward_pre_hook(lambda _, __, inputs: kept.append(inputs["attention_mask"]), with_kwargs=True)
    model(**{name: tensor for name, tensor in batch.items() if name != "labels"})
    assert kept == [None]


def make_case(model_type: str = "llama", **workload) -> Case:
    return case(model=llama(model_type=model_type), **{"task": "sft"} | workload)


@pytest.mark.parametrize("technique", [Padded(), GroupByLength()])
def test_who_drops_the_mask(technique):
    assert "padding" in technique.edits(make_case()).fragments
    assert technique.edits(make_case(task="text-classification")).after_trainer == ()
    experts = {"num_local_experts": 8, "num_experts_per_tok": 2}
    mixture = case(model=llama(model_type="mixtral", **experts), task="sft")
    assert mixture.model.experts and technique.edits(mixture).after_trainer == ()


def test_where_attention_needs_no_mask():
    assert attends_without_mask(make_case()) and attends_without_mask(make_case(task="causal-lm"))
    assert not attends_without_mask(make_case(task="text-classification"))
    window = case(model=llama(model_type="mistral", sliding_window=1024), task="sft", seq_len=2048)
    assert not attends_without_mask(window)
