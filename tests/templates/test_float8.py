"""The leaf that multiplies in 8 bits, emulated on a CPU: which layers it takes and leaves, and that they train as before."""

import dataclasses

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("torchao")

CONFIG = {
    "hidden_size": 64,
    "intermediate_size": 168,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
}


@pytest.fixture
def float8(load, monkeypatch):
    """The leaf, with products that a CPU can do: of the same 8-bit numbers, multiplied in 32 bits."""
    leaf = load("float8")
    named = leaf.Float8LinearConfig.from_recipe_name
    emulated = staticmethod(lambda recipe: dataclasses.replace(named(recipe), emulate=True))
    monkeypatch.setattr(leaf.Float8LinearConfig, "from_recipe_name", emulated)
    return leaf


def make(**more):
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG | more))


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_it_trains_close_to_bf16(float8, recipe):
    losses = {}
    tokens = torch.randint(0, 320, (4, 32), generator=torch.Generator().manual_seed(1))
    for eight_bits in (False, True):
        model = make(intermediate_size=160)
        names = set(model.state_dict())
        if eight_bits:
            assert float8.multiply_in_float8(model, recipe) == 14
            assert set(model.state_dict()) == names, "a checkpoint is that of the plain model"
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses[eight_bits] = []
        for _ in range(6):
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
            optimizer.step()
            optimizer.zero_grad()
            losses[eight_bits].append(loss.item())
    assert losses[True] != losses[False], "the products are rounded"
    assert losses[True] == pytest.approx(losses[False], rel=0.05)
    assert losses[True][-1] < 0.8 * losses[True][0]


def test_the_output_layer_and_odd_widths_are_left(float8):
    model = make()  # 168 is no multiple of 16
    assert float8.multiply_in_float8(model, "tensorwise") == 8
    kinds = {name: type(layer).__name__ for name, layer in model.named_modules() if isinstance(layer, torch.nn.Linear)}
    assert kinds["lm_head"] == "Linear"
    assert {kind for name, kind in kinds.items() if "mlp" in name} == {"Linear"}
    assert {kind for name, kind in kinds.items() if "attn" in name} == {"Float8Linear"}


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_any_number_of_tokens_has_gradients(load, recipe):
    """On the meta device torch._scaled_mm checks the shapes that its kernels take: multiples of 16 to sum over."""
    with torch.device("meta"):
        model = make(intermediate_size=160).to(torch.bfloat16)
    assert load("float8").multiply_in_float8(model, recipe) == 14
    layer = model.model.layers[0].mlp.up_proj
    for tokens in (24, 32):
        layer(torch.empty(tokens, 64, device="meta", dtype=torch.bfloat16, requires_grad=True)).sum().backward()
    assert layer.weight.grad.shape == layer.weight.shape


def test_a_model_without_such_layers_ends_the_run(float8):
    """Else all of it would be multiplied in 16 bits, at the memory and the speed of another plan."""
    model = make(hidden_size=24, num_attention_heads=2, num_key_value_heads=2, intermediate_size=40)
    with pytest.raises(SystemExit, match="0 layers multiply in 8 bits"):
        float8.multiply_in_float8(model, "tensorwise")
