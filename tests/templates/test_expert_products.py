"""Routed experts under autocast: multiplied in its dtype, while their weights and gradients stay float32."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from leaves import load_leaf
from making import case

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "model"))  # variants.py lies there

import torch
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations import moe
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from variants import configs

from generator.case.layout import Layout
from generator.inputs.meta_device import make_config
from generator.model import describe
from generator.model.block_traits import UNGROUPED, groups_experts
from generator.model.families import GROUPS, load_families
from generator.techniques.base import find_technique

KNOWN = sorted({name for group in GROUPS for name in load_families(group)} & set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
MIXED = {name: spec for name in KNOWN if (spec := describe(configs(name)[0], "x")).experts}
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 300, "pad_token_id": 0}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_experts_per_tok": 4}
"""Every token goes to all experts: else rounding sends some to others, whose gradients are not those of float32."""
TYPES = {
    "qwen3_moe": {"moe_intermediate_size": 48, "num_experts": 4},
    "gpt_oss": {"num_local_experts": 4},  # with biases, and weights that are not transposed
}
DECORATOR = "@use_experts_implementation"
SHORT, WIDE = torch.bfloat16, torch.float32


@pytest.fixture
def multiplied(monkeypatch) -> set[torch.dtype]:
    """Dtypes of what is multiplied as grouped experts, and of the product."""
    dtypes, function = set(), F.grouped_mm

    def watch(inputs, weight, **kwargs):
        product = function(inputs, weight, **kwargs)
        dtypes.update(tensor.dtype for tensor in (inputs, weight, product))
        return product

    monkeypatch.setattr(moe, "_grouped_mm", moe._grouped_mm)  # as it is now, when this test is over
    monkeypatch.setattr(F, "grouped_mm", watch)
    return dtypes


def make_model(model_type: str, **more):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **SIZES, **HEADS, **more)).train()


def learn(model, dtype: torch.dtype = SHORT) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients, by the autocast that emitted projects have."""
    model.zero_grad()
    tokens = torch.randint(4, 290, (2, 32), generator=torch.Generator().manual_seed(1))
    with torch.autocast("cpu", dtype, enabled=dtype != WIDE, cache_enabled=False):
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    return loss.item(), {name: weight.grad.clone() for name, weight in model.named_parameters()}


@pytest.mark.parametrize("model_type", TYPES)
def test_products_are_in_16_bits_and_gradients_in_32(model_type, multiplied):
    model = make_model(model_type, **TYPES[model_type])
    loss, gradients = learn(model, WIDE)
    learn(model)
    assert multiplied == {WIDE}, "PyTorch casts them itself: expert_products.py has nothing to do"
    multiplied.clear()

    load_leaf("expert_products").cast_experts()
    cast, cast_gradients = learn(model)
    assert multiplied == {SHORT}
    assert cast == pytest.approx(loss, abs=2e-3)
    for name, gradient in cast_gradients.items():
        assert gradient.dtype == WIDE
        if ".experts." in name:  # two roundings of 8 bits, and those of the layers around
            assert (gradient - gradients[name]).norm() < 0.05 * gradients[name].norm(), name


def test_they_are_the_products_of_linear_layers(multiplied):
    """Of one expert that has all tokens, bit for bit: product, gradient of the weight and of what goes in."""
    load_leaf("expert_products").cast_experts()
    weight, inputs = (torch.randn(*size, requires_grad=True) for size in ((48, 64), (32, 64)))
    results = []
    for multiply in (
        lambda: F.linear(inputs, weight),
        lambda: moe._grouped_linear(inputs, weight[None], torch.tensor([32], dtype=torch.int32)),
    ):
        with torch.autocast("cpu", SHORT, cache_enabled=False):
            product = multiply()
        results.append((product.detach(), *torch.autograd.grad(product.float().square().sum(), (weight, inputs))))
    assert all(one.dtype == other.dtype and one.equal(other) for one, other in zip(*results, strict=True))


def test_recomputed_layers_cast_them_too(multiplied):
    model = make_model("qwen3_moe", **TYPES["qwen3_moe"])
    load_leaf("expert_products").cast_experts()
    loss, gradients = learn(model)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    again, recomputed = learn(model)
    assert loss == again and all(recomputed[name].equal(gradient) for name, gradient in gradients.items())
    assert multiplied == {SHORT}


def test_without_autocast_nothing_is_cast(multiplied):
    """Sample answers are generated outside of it."""
    model = make_model("qwen3_moe", **TYPES["qwen3_moe"])
    loss, gradients = learn(model, WIDE)
    load_leaf("expert_products").cast_experts()
    again, same = learn(model, WIDE)
    assert loss == again and all(same[name].equal(gradient) for name, gradient in gradients.items())
    assert multiplied == {WIDE}


def test_a_compiled_layer_has_one_graph_and_no_loop_over_experts(load, multiplied):
    """Transformers gives a float32 weight in a compiled layer to an operator of its own, which multiplies expert by expert."""
    layer = make_model("qwen3_moe", **TYPES["qwen3_moe"]).model.layers[0].mlp
    operators: list[str] = []

    def note(graph, _inputs):
        operators.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    for casts in (False, True):
        operators.clear()
        torch.compiler.reset()
        if casts:
            load("expert_products").cast_experts()
        with torch.autocast("cpu", SHORT, cache_enabled=False):
            torch.compile(layer, backend=note, fullgraph=True)(torch.randn(1, 16, 64))
        products = {name.rpartition(".")[2] for name in operators if "grouped_mm" in name}
        assert products and ("grouped_mm_fallback" in products) is not casts
    torch.compiler.reset()


@pytest.mark.parametrize("model_type", MIXED)
def test_types_whose_experts_are_one_grouped_product(model_type, multiplied):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(make_config(configs(model_type)[0]))
    tokens = torch.randint(4, 90, (2, 12))
    with torch.no_grad():
        model(input_ids=tokens, use_cache=False)
    assert groups_experts(MIXED[model_type]) is bool(multiplied)


def test_every_type_whose_experts_are_none_is_known():
    """By the decorator that Transformers puts on the class of what is multiplied so."""
    models = Path(moe.__file__).parents[1] / "models"
    sources = {path.stem.removeprefix("modeling_"): path.read_text() for path in models.glob("*/modeling_*.py")}
    ungrouped = {name for name, text in sources.items() if "Experts(nn.Module)" in text and DECORATOR not in text}
    assert {name.removesuffix("_text") for name in UNGROUPED} == ungrouped


@pytest.mark.parametrize(
    ("strategy", "casts"),
    [("none", True), ("ddp", True), ("fsdp_full_shard", False), ("zero2", False), ("zero3", False)],
)
def test_who_casts_them(strategy, casts):
    """FSDP2 and DeepSpeed cast the weights; adapters train beside 16-bit ones; without autocast there is nothing to do."""
    model = MIXED["qwen3_moe"]
    layout = Layout(strategy=strategy, shard=1 if strategy == "none" else 2)

    def list_leaves(precision: str, **more) -> tuple[str, ...]:
        of = replace(case(**{"model": model} | more), layout=layout)
        return find_technique("precision", precision).edits(of).fragments

    assert ("expert_products" in list_leaves("bf16")) is casts
    assert ("expert_products" in list_leaves("fp16")) is casts
    for others in ({"precision": "fp32"}, {"precision": "bf16-pure"}, {"precision": "bf16", "train": "lora"}):
        assert "expert_products" not in list_leaves(**others)
    assert "expert_products" not in list_leaves("bf16", model=MIXED["llama4_text"])
