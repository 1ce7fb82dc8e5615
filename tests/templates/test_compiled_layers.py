"""The leaf that compiles each layer: one compilation for all, beside chunks of the loss, adapters and recomputation."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

CONFIG = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
}


def make(load, *, chunks: bool, lora: bool, recompute: bool):
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG)).train()
    if lora:
        peft = pytest.importorskip("peft")
        model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
        model.enable_input_require_grads()
    if chunks:
        load("chunked_loss").chunk_loss(model)
    if recompute:
        model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    return model


def step(model, length: int) -> tuple[float, list]:
    tokens = torch.randint(0, 300, (2, length), generator=torch.Generator().manual_seed(length))
    loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return loss.item(), gradients


def test_layers_are_compiled_in_place(load):
    model = make(load, chunks=False, lora=False, recompute=False)
    names = list(model.state_dict())
    load("compiled_layers").compile_layers(model)
    compiled = [name for name, module in model.named_modules() if module._compiled_call_impl is not None]
    assert compiled == [f"model.layers.{number}" for number in range(4)]
    assert list(model.state_dict()) == names


@pytest.mark.slow
@pytest.mark.parametrize("beside", [{}, {"chunks": True, "recompute": True}, {"lora": True}])
def test_one_compilation_serves_all_layers_and_two_serve_any_length(load, beside):
    """Loss and gradients are those of the eager model."""
    from torch._dynamo.utils import counters

    how = {"chunks": False, "lora": False, "recompute": False} | beside
    eager, compiled = make(load, **how), make(load, **how)
    load("compiled_layers").compile_layers(compiled)
    torch._dynamo.reset()
    counters.clear()
    graphs = []
    for length in (32, 32, 48, 40, 33):
        expected, loss = step(eager, length), step(compiled, length)
        assert loss[0] == pytest.approx(expected[0], rel=1e-5)
        assert all(torch.allclose(a, b, atol=1e-5, rtol=1e-4) for a, b in zip(loss[1], expected[1], strict=True))
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs == [1, 1, 2, 2, 2] and not counters["graph_break"]


def test_where_lengths_differ_it_is_taken_once_it_is_allowed():
    """`--allow` was ignored without a word, and the reason did not name it."""
    from making import H100
    from rules.table import on

    from generator.techniques.base import find_technique

    regional = find_technique("compile", "regional")
    of = {"train": "lora", "task": "sft"}
    assert "only on request: --allow compile=regional" in regional.obstacle(on(H100, **of))
    for asked in ({"allow": ("compile=regional",)}, {"pins": (("compile", "regional"),)}):
        assert regional.obstacle(on(H100, **of, **asked)) is None
