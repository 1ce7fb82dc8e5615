"""What a spec says of attention, and what the cost model makes of it: windows, shared keys, recurrent blocks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from making import H100, case, cost

from generator.cost.execution import Execution
from generator.cost.infer import compute_cache_bytes
from generator.model import describe

GEMMA = {
    "model_type": "gemma2",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 32000,
    "sliding_window": 512,
    "max_position_embeddings": 8192,
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "moe_intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "kv_lora_rank": 128,
    "q_lora_rank": 256,
    "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 64,
    "v_head_dim": 64,
    "first_k_dense_replace": 1,
    "vocab_size": 32000,
}
MAMBA = {
    "model_type": "mamba",
    "hidden_size": 512,
    "state_size": 16,
    "num_hidden_layers": 4,
    "vocab_size": 32000,
}


KEPT = {
    "gemma2": lambda tokens: 6 * 2 * 4 * 128 * (tokens + min(tokens, 512)),  # every other layer sees a window
    "deepseek_v3": lambda tokens: 4 * (128 + 32) * tokens,  # the latent and the rotated key
    "mamba": lambda tokens: 4 * 1024 * (4 + 16),  # per channel the last inputs of the convolution, and the state space
}
"""elements that generation keeps of one sequence: keys and values of what a layer still sees, and states"""


def build_cost_model(config):
    return cost(case(H100, describe(config, "m")))


@pytest.mark.parametrize("config", [GEMMA, DEEPSEEK, MAMBA], ids=lambda c: c["model_type"])
@pytest.mark.parametrize("tokens", [100, 4096])
def test_the_cache_is_what_generation_keeps(config, tokens):
    run = Execution(mode="infer", weights_dtype="bfloat16", seq_len=tokens)
    assert compute_cache_bytes(build_cost_model(config).shape, run, tokens) == 2 * KEPT[config["model_type"]](tokens)


def test_a_window_in_half_of_the_blocks_saves_about_half_of_the_scores_of_long_sequences():
    def attention(config):
        run = Execution(autocast_dtype="bfloat16", seq_len=8192, micro_batch=1)
        return next(p.value for p in build_cost_model(config).estimate(run).time if p.name == "attention")

    windowed, full = attention(GEMMA), attention(GEMMA | {"layer_types": ["full_attention"] * 12})
    assert 0.5 < windowed / full < 0.65


def test_where_only_sizes_are_known_all_blocks_attend_alike():
    spec = replace(describe(GEMMA, "m"), attention=(), sliding_window=None)
    assert spec.kv_bytes_per_token == 2 * 2 * 12 * 4 * 128


FALCON = {"model_type": "falcon", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 64}
FALCON |= {"alibi": False, "bias": False}
GPT_NEO = {
    "model_type": "gpt_neo",
    "hidden_size": 64,
    "num_layers": 4,
    "num_heads": 4,
    "vocab_size": 64,
    "window_size": 8,
}
GPT_NEO |= {"attention_types": [[["global", "local"], 2]], "bos_token_id": 1, "eos_token_id": 1}


@pytest.mark.parametrize(
    "config, in_pages",
    [
        (FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2}, 2 * 2 * 2 * 8 * 48),
        (FALCON | {"new_decoder_architecture": False, "multi_query": True}, 2 * 2 * 8 * 48),
        (GPT_NEO, 2 * 2 * 64 * (48 + 8)),
    ],
    ids=["falcon-40b", "falcon-7b", "gpt-neo"],
)
def test_the_cache_of_transformers_is_what_its_code_hands_on(config, in_pages):
    """Falcon's new architecture repeats keys for all queries first, GPT-Neo's local layers keep what their window has left."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    made = transformers.AutoConfig.for_model(**config)
    model = transformers.AutoModelForCausalLM.from_config(made).eval()
    with torch.no_grad():
        kept = model(torch.zeros(1, 48, dtype=torch.long), use_cache=True).past_key_values
    shape = build_cost_model(config).shape
    run = Execution(mode="infer", weights_dtype="bfloat16", seq_len=48)
    elements = sum(layer.keys.numel() + layer.values.numel() for layer in kept.layers)
    assert compute_cache_bytes(shape, run, 48) == 2 * elements
    assert compute_cache_bytes(shape, run.but(engine="vllm"), 48) == 2 * in_pages
    assert 48 * describe(config, "m").held_bytes_per_token == 2 * elements
