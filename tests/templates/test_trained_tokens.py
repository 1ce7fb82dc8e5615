"""TRL's loss on the trained tokens alone is its loss on all of them: value, gradients, and what is logged."""

from __future__ import annotations

import inspect

import pytest
from leaves import load_leaf
from making import H100, case, cpu_device

from generator.techniques.base import find_technique

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
from test_flattened import build_model, make_batch  # noqa: E402
from trl.trainer.utils import add_fused_lm_head  # noqa: E402


def add_adapters(model):
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(3)
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear"))
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight)  # zero at first: nothing would reach lora_A
    return model


def learn(model, batch: dict) -> tuple[list[float], dict]:
    """What SFTTrainer's compute_loss takes of the outputs, and the gradients."""
    model.zero_grad()
    output = model(**batch, use_cache=False, fused_lm_head=True)
    (-output.log_probs.sum()).backward()
    sums = (output.log_probs, output.entropy, output.is_top1, output.label_mask)
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return [item.sum().item() for item in sums], gradients


@pytest.mark.parametrize("padding_free", [False, True])
@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.parametrize("model_type", ["llama", "granite", "opt"])
def test_equal_to_all_tokens(model_type, padding_free, adapters):
    model, batch = build_model(model_type), make_batch(padding_free)
    if padding_free:
        load_leaf("row_attention").attend_within_rows(model)
    model = add_adapters(model) if adapters else model
    add_fused_lm_head(model.get_base_model() if adapters else model, outputs=("log_probs", "entropy", "is_top1"))
    expected, expected_gradients = learn(model, batch)
    load_leaf("trained_tokens").score_trained_tokens(model)
    backbone = (model.get_base_model() if adapters else model).base_model
    sums, gradients = learn(model, batch)
    assert sums == pytest.approx(expected, rel=1e-5)
    assert gradients.keys() == expected_gradients.keys() and gradients
    for name, gradient in expected_gradients.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=1e-5)
    assert not backbone._forward_hooks


def test_the_others_have_no_logits():
    model, batch = build_model("llama"), make_batch(padding_free=False)
    add_fused_lm_head(model, outputs=("log_probs", "entropy", "is_top1"))
    load_leaf("trained_tokens").score_trained_tokens(model)
    output = model(**batch, use_cache=False, fused_lm_head=True)
    assert output.log_probs.shape == (1, (batch["labels"][:, 1:] != -100).sum())


def test_a_model_whose_prefix_is_not_its_own_has_them_alone_too():
    """The prefix of Llama4ForCausalLM names it within the model of text and images."""
    from transformers import Llama4ForCausalLM, Llama4TextConfig

    config = Llama4TextConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        intermediate_size_mlp=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        num_local_experts=2,
    )
    model = Llama4ForCausalLM(config)
    add_fused_lm_head(model, outputs=("log_probs", "entropy", "is_top1"))
    load_leaf("trained_tokens").score_trained_tokens(model)
    tokens = torch.randint(1, 64, (2, 8))
    labels = tokens.clone()
    labels[:, :5] = -100
    assert model(input_ids=tokens, labels=labels, use_cache=False, fused_lm_head=True).log_probs.shape == (1, 6)


def test_a_batch_without_a_trained_token_has_no_loss():
    """Rows that fill the last batch of an evaluation are such."""
    model, batch = build_model("llama"), make_batch(padding_free=False)
    add_fused_lm_head(model, outputs=("log_probs", "entropy", "is_top1"))
    load_leaf("trained_tokens").score_trained_tokens(model)
    sums, gradients = learn(model, batch | {"labels": torch.full_like(batch["labels"], -100)})
    assert sums == [0, 0, 0, 0]
    assert all(not gradient.any() for gradient in gradients.values())


def test_the_model_s_own_forward_stays():
    model, batch = build_model("llama").eval(), make_batch(padding_free=False)
    before, parameters = model(**batch), set(inspect.signature(model.forward).parameters)
    add_fused_lm_head(model)
    load_leaf("trained_tokens").score_trained_tokens(model)
    after = model(**batch)
    assert torch.equal(after.logits, before.logits) and after.loss == before.loss
    assert set(inspect.signature(model.forward).parameters) >= parameters - {"self"}
    model.generate(torch.tensor([[5, 6]]), max_new_tokens=2, do_sample=False)


def test_who_leaves_tokens_out():
    """On a GPU TRL does it by itself."""
    chunked = find_technique("loss", "chunked")
    assert chunked.edits(case(cpu_device(), task="sft")).fragments == ("trained_tokens",)
    assert chunked.edits(case(H100, task="sft")).fragments == ()
    assert chunked.edits(case(cpu_device())).fragments == ("chunked_loss",)
