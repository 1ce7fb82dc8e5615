"""Which weights processes use for tokens of their own."""

import pytest

BLOCKS = ("self_attn", "mlp")


@pytest.fixture
def model():
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "vocab_size": 16,
    }
    return LlamaForCausalLM(LlamaConfig(**sizes))


def test_gradients_of_the_norms_beside_the_blocks_are_summed(load, model):
    leaf = load("token_parts")
    parts = leaf.TokenParts()
    styles = parts.choose_styles(model.tp_plan)
    blocks = {f"model.layers.*.{name}": leaf.GATHERED for name in BLOCKS}
    sums = {f"model.layers.*.{name}": leaf.SCATTERED for name in ("self_attn.o_proj", "mlp.down_proj")}
    assert styles == blocks | sums
    divided = {id(weight) for weight in parts.list_divided(model.model.layers)}
    names = {name for name, weight in model.named_parameters() if id(weight) in divided}
    norms = ("input_layernorm", "post_attention_layernorm")
    assert names == {f"model.layers.{number}.{norm}.weight" for number in (0, 1) for norm in norms}


def test_a_plan_that_leaves_a_block_whole_is_refused(load, model, monkeypatch):
    """Attention would see a part of each row, and nothing would say so."""
    leaf = load("token_parts")
    monkeypatch.setattr(leaf.dist, "get_rank", lambda: 0)
    for left in BLOCKS:
        parts = leaf.TokenParts()
        parts.choose_styles({name: style for name, style in model.tp_plan.items() if left not in name})
        with pytest.raises(SystemExit, match="leaves matrices of this model's layers whole"):
            parts.list_divided(model.model.layers)
