"""Greedy tokens of many types of models, alone and several at once, are those of generate."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from generator.techniques.engine.transformers import DIRECT_TYPES

SIZES = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.5,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_expand": 2}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
HYBRID = {"layer_types": ["linear_attention", "full_attention"]}
SLIDING = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
ROTATED = {"rope_theta": 10000.0, "original_max_position_embeddings": 20}
LONG = {
    "rope_parameters": ROTATED
    | {"rope_type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 8.0]},
    "original_max_position_embeddings": 20,
    "max_position_embeddings": 128,
}
YARN = {"rope_parameters": ROTATED | {"rope_type": "yarn", "factor": 4.0}, "max_position_embeddings": 80}
TYPES: dict[str, tuple[str, dict]] = {
    "llama": ("Together", {}),
    "mistral": ("Apart", {"sliding_window": 8}),
    "mixtral": ("Together", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2": ("Together", {}),
    "qwen3": ("Together", {}),
    "qwen3_moe": ("Together", EXPERTS),
    "phi": ("Together", {}),
    "phi3": ("Together", {}),
    "gemma": ("Together", {}),
    "gemma2": ("Apart", {"sliding_window": 8}),
    "gemma3_text": ("Apart", SLIDING),
    "gpt2": ("Together", GPT2),
    "gpt_neo": (
        "Together",
        {"num_layers": 2, "num_heads": 4, "attention_types": [[["global"], 2]], "window_size": 256},
    ),
    "gpt_neox": ("Together", {}),
    "gptj": ("Together", GPT2 | {"rotary_dim": 4}),
    "codegen": ("Together", GPT2 | {"rotary_dim": 4, "n_head": 4, "n_embd": 64}),
    "gpt_bigcode": ("Together", GPT2),
    "opt": ("Together", {"ffn_dim": 48, "word_embed_proj_dim": 32, "max_position_embeddings": 128}),
    "xglm": ("Together", {"d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4}),
    "biogpt": ("Together", {}),
    "bloom": ("Apart", {"n_layer": 2, "n_head": 4}),
    "mpt": ("Together", {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 128}),
    "falcon": ("Together", {"num_kv_heads": 2, "new_decoder_architecture": True}),
    "stablelm": ("Together", {}),
    "starcoder2": ("Together", {"sliding_window": None}),
    "olmo2": ("Together", {}),
    "cohere": ("Together", {}),
    "cohere2": ("Apart", SLIDING),
    "granite": ("Together", {}),
    "smollm3": ("Together", {"no_rope_layers": [1, 0]}),
    "gpt_oss": ("Apart", SLIDING | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "deepseek_v3": (
        "Together",
        {
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
            "num_key_value_heads": 4,
        }
        | {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    ),
    "ctrl": ("Together", {"n_embd": 32, "n_layer": 2, "n_head": 4, "dff": 48, "n_positions": 128}),
    "openai-gpt": ("Anew", GPT2),
    "mamba": ("Apart", {"state_size": 8}),
    "mamba2": ("Apart", {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 1, "expand": 2}),
    "falcon_mamba": ("Apart", {"state_size": 8}),
    "rwkv": ("Apart", {"attention_hidden_size": 32}),
    # its states are in its modules, one for all who ask
    "recurrent_gemma": ("Anew", {"attention_window_size": 8, "lru_width": 32, "num_hidden_layers": 3}),
    "jamba": ("Apart", {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "use_mamba_kernels": False}),
    "bamba": ("Apart", MAMBA | {"attn_layer_indices": [1]}),
    "falcon_h1": ("Apart", MAMBA | {"mamba_d_ssm": 64}),
    "granitemoehybrid": (
        "Apart",
        MAMBA | {"layer_types": ["mamba", "attention"], "num_local_experts": 2, "num_experts_per_tok": 1},
    ),
    "qwen3_next": ("Apart", EXPERTS | LINEAR | HYBRID | {"shared_expert_intermediate_size": 16}),
    "lfm2": ("Apart", {"layer_types": ["conv", "full_attention"]}),
    "zamba2": (
        "Apart",
        {
            "mamba_headdim": 16,
            "n_mamba_heads": 4,
            "mamba_d_state": 8,
            "hybrid_layer_ids": [1],
            "layers_block_type": ["mamba", "hybrid"],
        },
    ),
}
STRETCHED: dict[str, tuple[str, dict]] = {
    "phi3": ("Turning", LONG),
    "phimoe": ("Turning", LONG | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "llama": ("Together", YARN),
    "ministral3": ("Together", YARN | {"head_dim": 8, "sliding_window": None}),
    "deepseek_v3": ("Together", TYPES["deepseek_v3"][1] | YARN),
    "olmo3": ("Apart", SLIDING | YARN),
}
STRETCHED["phimoe"][1]["rope_parameters"] = LONG["rope_parameters"] | {"short_mscale": 1.1, "long_mscale": 1.3}
STRETCHED["ministral3"][1]["rope_parameters"] = YARN["rope_parameters"] | {"llama_4_scaling_beta": 0.5}
"""With other rotary embeddings for texts of more than 20 tokens, and with those that reach further for all."""
PROMPTS = [[5, 9, 60], [7] * 3 + list(range(20, 50)), [100], list(range(30, 42))]


@pytest.fixture
def modules(load, monkeypatch):
    for leaf, name in (("machine/cpu", "machine"), ("sources", "sources"), ("stop_tokens", "stop_tokens")):
        load(leaf, name)
    for name in ("sampling", "prompts", "decoding", "engine_thread", "scheduler", "direct_step", "slots"):
        load(f"serving/{name}", name)
    load("serving/proposals/prompt_lookup", "proposals")
    monkeypatch.setitem(sys.modules, "model", SimpleNamespace(load_model=lambda config: config["loaded"]))
    engine = load("engines/transformers", "engine")
    monkeypatch.setattr(engine, "Prompts", lambda config: SimpleNamespace(stop_tokens=()))
    return engine


def make_model(kind: str, sizes: dict, **more):
    """Random weights, large enough that tokens differ."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **SIZES | sizes)
    model = AutoModelForCausalLM.from_config(config, **more).float().eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1 and 0 < weight.std() < 0.1:
                weight.normal_(0, 0.3)
    return model


def generate_plainly(model, prompt: list[int], tokens: int) -> list[int]:
    ids = torch.tensor([prompt])
    more = {"attention_mask": torch.ones_like(ids), "pad_token_id": 0, "eos_token_id": None}
    return model.generate(ids, max_new_tokens=tokens, do_sample=False, **more)[0, len(prompt) :].tolist()


@pytest.mark.parametrize("kind", TYPES)
def test_greedy_tokens_are_those_of_generate(modules, kind):
    decoder, sizes = TYPES[kind]
    assert find_decoder(modules, kind, sizes) == decoder


@pytest.mark.parametrize("kind", STRETCHED)
def test_texts_on_both_sides_of_a_stretch_do_not_touch_each_other(modules, kind):
    decoder, sizes = STRETCHED[kind]
    assert find_decoder(modules, kind, sizes) == decoder


def test_what_fits_before_the_stretch_is_computed_together(modules):
    model = make_model("phi3", LONG)
    short = [prompt[:8] for prompt in PROMPTS]
    serving = {"max_context": 20, "max_concurrency": 3, "weights": "float32", "cache": "static"}
    engine = modules.Engine({"loaded": model, "serving": serving}, None)
    found = engine.generate(short, [modules.Sampling(12, ends=False)] * len(short))
    engine.close()
    assert found == [generate_plainly(model, prompt, 12) for prompt in short]
    assert type(engine.decoder).__name__ == "Together"


DIRECT = {"llama": {}, "mistral": {"sliding_window": None}, "qwen2": {}, "qwen3": {}}
"""Of whose layers direct_step.py computes the next token."""


@pytest.mark.parametrize("kind", DIRECT)
def test_a_direct_step_gives_the_tokens_of_generate(modules, kind):
    assert frozenset(DIRECT) == DIRECT_TYPES
    assert find_decoder(modules, kind, DIRECT[kind], step="direct") == "Direct"


@pytest.mark.parametrize("kind", [kind for kind, (how, _) in TYPES.items() if how == "Together" and kind not in DIRECT])
def test_what_a_direct_step_does_not_suit_takes_the_whole_pass(modules, kind, capsys):
    """Its engine compares before it answers, and says what it found."""
    found = find_decoder(modules, kind, TYPES[kind][1], step="direct")
    assert found == "Direct" or "by the model's whole forward pass" in capsys.readouterr().err


def find_decoder(modules, kind: str, sizes: dict, **more) -> str:
    """How its engine computes the next tokens, which are those of generate."""
    model = make_model(kind, sizes)
    expected = [generate_plainly(model, prompt, 12) for prompt in PROMPTS]
    assert len({token for answer in expected for token in answer}) > 3
    serving = {"max_context": 64, "max_concurrency": 3, "weights": "float32", "cache": "static"} | more
    engine = modules.Engine({"loaded": model, "serving": serving}, None)
    samplings = [modules.Sampling(12, ends=False)] * len(PROMPTS)
    assert engine.generate(PROMPTS, samplings) == expected
    assert [engine.generate([prompt], samplings[:1])[0] for prompt in PROMPTS] == expected
    engine.close()
    return type(engine.decoder).__name__
