"""Norms and feed-forward in tiles have the loss and the gradients of plain layers, for every model type that is trained so."""

from __future__ import annotations

from dataclasses import replace

import pytest
from leaves import load_leaf
from making import case, cpu_device, llama
from test_padding import build_tiny_model

from generator.decide.serving import plan_case
from generator.techniques.base import find_technique
from generator.techniques.checkpointing.tiled import TILE_TOKENS, VERIFIED
from hwdetect import catalog

QUICK = ("llama", "qwen3", "phi3", "stablelm")


@pytest.fixture
def leaf():
    pytest.importorskip("torch")
    pytest.importorskip("peft")
    return load_leaf("tiled_layers")


def learn(model_type: str, leaf=None, *, adapted: bool, tile: int = 4) -> tuple[float, dict, int]:
    """Loss, gradients, and how often a product of the feed-forward ran; 22 tokens are five tiles of 4 and one of 2."""
    import torch
    from peft import LoraConfig, get_peft_model

    model = build_tiny_model(model_type)
    if adapted:
        torch.manual_seed(1)
        model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    model.train()
    model.get_decoder().config.use_cache = False
    base = model.base_model.model if adapted else model
    base.activation_checkpointing_enable({"use_reentrant": False})
    calls = []
    product = next(m for m in model.get_decoder().layers[0].mlp.modules() if isinstance(m, torch.nn.Linear))
    product.register_forward_hook(lambda *_: calls.append(1))
    if leaf:
        leaf.TILE_TOKENS = 2 * tile
        leaf.tile_layers(model)
    tokens = torch.randint(2, 96, (2, 22), generator=torch.Generator().manual_seed(2))
    loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return loss.item(), gradients, len(calls)


def check_equal(model_type: str, leaf, *, adapted: bool) -> None:
    import torch

    loss, gradients, calls = learn(model_type, adapted=adapted)
    tiled_loss, tiled_gradients, tiled_calls = learn(model_type, leaf, adapted=adapted)
    assert tiled_loss == pytest.approx(loss, abs=1e-6)
    assert gradients.keys() == tiled_gradients.keys() and gradients
    for name, gradient in gradients.items():
        torch.testing.assert_close(tiled_gradients[name], gradient, rtol=1e-4, atol=1e-6)
    assert calls == 2 and tiled_calls >= 2 * 6, "six tiles, and again in the backward pass"


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("model_type", QUICK)
def test_equal_to_plain_layers(model_type, adapted, leaf):
    assert model_type in VERIFIED
    check_equal(model_type, leaf, adapted=adapted)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", sorted(VERIFIED - {*QUICK}))
def test_every_type_that_is_offered_is_equal(model_type, leaf):
    check_equal(model_type, leaf, adapted=False)
    check_equal(model_type, leaf, adapted=True)


def test_the_tile_is_that_of_the_fragment(leaf):
    assert leaf.TILE_TOKENS == TILE_TOKENS


# ---- what is planned

LONG = {"train": "qlora", "task": "sft", "loss_on": "all", "global_batch": 1}


@pytest.mark.parametrize(("device", "host_gib", "tokens"), [("rtx-4090", 48, 81920), ("rtx-4060-ti-8gb", 16, 8192)])
def test_a_long_context_is_planned_where_it_was_refused(device, host_gib, tokens):
    plan = plan_case(case(catalog.load(device), llama(), seq_len=tokens, host_gib=host_gib, **LONG))
    assert plan.best.choice["checkpointing"] == "tiled-offloaded" and plan.best.risk == 0
    written = {a.name: a.code for a in plan.edits.training_arguments}
    assert '"offload": True' in written["activation_checkpointing_kwargs"]
    assert "tile_layers(trainer.model)" in plan.edits.after_trainer and "tiled_layers" in plan.edits.fragments
    assert plan.best.execution.checkpoint_offload and plan.best.execution.tile_tokens == TILE_TOKENS


def test_what_fits_without_is_left_alone():
    plan = plan_case(case(catalog.load("rtx-4090"), llama(), seq_len=4096, host_gib=48, **LONG))
    assert plan.best.choice["checkpointing"] in ("off", "full", "every-2", "every-3", "every-4")


def test_tiles_and_offloading_have_their_obstacles():
    tiled, offloaded = find_technique("checkpointing", "tiled"), find_technique("checkpointing", "offloaded")
    both = find_technique("checkpointing", "tiled-offloaded")
    short = case(catalog.load("rtx-4090"), llama(), seq_len=TILE_TOKENS, **LONG)
    on_cpu = case(cpu_device(), llama(), seq_len=8192, **LONG)
    other = case(catalog.load("rtx-4090"), replace(llama(), model_type="gpt2"), seq_len=8192, **LONG)
    assert "one tile" in tiled.obstacle(short) and "one tile" in both.obstacle(short)
    assert offloaded.obstacle(short) is None and tiled.obstacle(on_cpu) is None
    assert "no accelerator" in offloaded.obstacle(on_cpu) and "no accelerator" in both.obstacle(on_cpu)
    assert "not verified" in tiled.obstacle(other) and "not verified" in both.obstacle(other)
