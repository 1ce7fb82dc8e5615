"""Decoders: one row a model type, as the modeling files of Transformers 5.23 build them."""

from __future__ import annotations

from functools import partial

from generator.model.blocks import attention, gated, norms, plain, width
from generator.model.parts import Item, Part, embedding, linear, norm, vector
from generator.model.settings import Settings
from generator.model.stacks import Row, alternating, decoder, every, output, qwen_windows, tokens

LLAMA = decoder(attention(bias="attention_bias"), gated(bias="mlp_bias"))
BARE = decoder(attention(), gated())
QWEN3_ATTENTION = attention(bias="attention_bias", qk_norm="head")
GPT_NAMES = "attn.c_attn attn.c_proj"
gpt = partial(decoder, norm_arrays=2, kinds=every())


def falcon_attention(c: Settings, kind: str) -> list[Item]:
    """One projection for queries, keys and values; old models keep one key head (or as many as queries)."""
    return attention("query_key_value dense", bias="bias")(falcon_heads(c), kind)


def falcon_heads(c: Settings) -> Settings:
    one = c["multi_query"] and not c["new_decoder_architecture"]
    kept = c["num_kv_heads"] if c["new_decoder_architecture"] else (1 if one else c.heads)
    return c.but(num_key_value_heads=kept or c.heads)


def falcon_norms(c: Settings) -> int:
    apart = c["num_ln_in_parallel_attn"]
    apart = 2 if apart is None and c["new_decoder_architecture"] else apart
    if c["parallel_attn"]:
        return 2 if c["new_decoder_architecture"] and apart == 2 else 1
    return 2


def bigcode_heads(c: Settings) -> Settings:
    return c.but(num_key_value_heads=1 if c["multi_query"] else c.heads)


def opt_tokens(c: Settings) -> list[Item]:
    narrow = c["word_embed_proj_dim"] or c.hidden
    made: list[Item] = [
        embedding("embed_tokens", c.vocab, narrow),
        embedding("positions", c.size("positions") + 2, c.hidden),
    ]
    if narrow != c.hidden:
        made += [linear("project_in", narrow, c.hidden), linear("project_out", c.hidden, narrow)]
    return made


def opt_head(c: Settings) -> list[Item]:
    narrow = c["word_embed_proj_dim"] or c.hidden
    return [item._replace(inputs=narrow) if isinstance(item, Part) else item for item in output()(c)]


def stablelm_norms(c: Settings) -> list[Item]:
    """Norms of every head apart (LayerNorms without bias)."""
    return [vector("qk_layernorm", (c.heads + c.kv_heads) * c.head_dim)] if c["qk_layernorm"] else []


def bigger_norm(c: Settings) -> int:
    return 2 if c["layer_norm_elementwise_affine"] else 0


def smollm_kinds(c: Settings) -> list[str]:
    told = c["layer_types"]
    return list(told) if told else ["full_attention"] * c.layers


ROWS: dict[str, Row] = {
    # Llama and what differs from it by biases and norms
    "llama": decoder(attention(bias="attention_bias"), gated(bias="mlp_bias"), kinds=every("full_attention")),
    "internlm3": LLAMA,
    "granite": LLAMA,
    "helium": decoder(attention(bias="attention_bias", out_bias=False, out=width), gated(bias="mlp_bias")),
    "smollm3": decoder(attention(bias="attention_bias"), gated(bias="mlp_bias"), kinds=smollm_kinds),
    "seed_oss": decoder(attention(bias="attention_bias", out_bias="attention_out_bias"), gated(bias="mlp_bias")),
    "ernie4_5": decoder(attention(bias="use_bias"), gated(bias="use_bias")),
    "mistral": BARE,
    "ministral": BARE,
    "ministral3": BARE,
    "qwen2": decoder(attention(bias=True, out_bias=False), gated(), kinds=qwen_windows),
    "qwen3": decoder(QWEN3_ATTENTION, gated(), kinds=qwen_windows),
    "hunyuan_v1_dense": decoder(attention(bias="attention_bias", qk_norm="head"), gated()),
    "exaone4": decoder(attention(qk_norm="head"), gated(), kinds=alternating("sliding_window_pattern")),
    "olmo": decoder(attention(bias="attention_bias"), gated(), norm_arrays=0),
    "olmo2": decoder(attention(bias="attention_bias", qk_norm="full"), gated()),
    "olmo3": decoder(attention(bias="attention_bias", qk_norm="full"), gated(), kinds=alternating(4)),
    "phi3": decoder(attention("qkv_proj o_proj"), gated("gate_up_proj down_proj")),
    "glm": decoder(attention(bias="attention_bias", out_bias=False), gated("gate_up_proj down_proj")),
    "glm4": decoder(attention(bias="attention_bias", out_bias=False), gated("gate_up_proj down_proj"), norms=4),
    "gemma": decoder(attention(bias="attention_bias"), gated()),
    "gemma2": decoder(attention(bias="attention_bias"), gated(), norms=4, kinds=alternating(2)),
    "gemma3_text": decoder(
        attention(bias="attention_bias", qk_norm="head"),
        gated(),
        norms=4,
        kinds=alternating("sliding_window_pattern", usual=6),
    ),
    "vaultgemma": decoder(attention(bias="attention_bias"), gated(), kinds=alternating(2)),
    "cohere": decoder(attention(bias="attention_bias", qk_norm="heads", when="use_qk_norm"), gated(), norms=1),
    "cohere2": decoder(
        attention(bias="attention_bias"), gated(), norms=1, kinds=alternating("sliding_window_pattern", usual=4)
    ),
    "bitnet": decoder(
        attention(bias="attention_bias", extra=norms(1)),
        gated(extra=lambda c: norm("ffn_sub_norm", c.ffn, 1)),
    ),
    "stablelm": decoder(
        attention(bias="use_qkv_bias", out_bias=False, extra=stablelm_norms),
        gated(),
        norms=lambda c: 1 if c["use_parallel_residual"] else 2,
        norm_arrays=2,
    ),
    # feed-forwards without a gate
    "nemotron": decoder(attention(bias="attention_bias"), plain("up_proj down_proj", bias="mlp_bias"), norm_arrays=2),
    "arcee": decoder(attention(bias="attention_bias"), plain("up_proj down_proj", bias="mlp_bias")),
    "apertus": decoder(
        attention(bias="attention_bias", qk_norm="head"),
        plain("up_proj down_proj", bias="mlp_bias", extra=lambda c: [vector("act_fn.alpha", 2)]),
    ),
    "starcoder2": decoder(attention(bias="use_bias"), plain("c_fc c_proj", bias="use_bias"), norm_arrays=2),
    "phi": decoder(
        attention("q_proj k_proj v_proj dense", bias=True, qk_norm="head", norm_arrays=2, when="qk_layernorm"),
        plain(),
        norms=1,
        norm_arrays=2,
        head=output(bias=True),
    ),
    "persimmon": decoder(
        attention("query_key_value dense", bias=True, qk_norm="head", norm_arrays=2, when="qk_layernorm"),
        plain("dense_h_to_4h dense_4h_to_h"),
        norm_arrays=2,
    ),
    "gpt_neox": gpt(attention("query_key_value dense", bias="attention_bias"), plain("dense_h_to_4h dense_4h_to_h")),
    "gpt2": gpt(attention(GPT_NAMES, bias=True), plain("mlp.c_fc mlp.c_proj"), embed=tokens("wte", 0)),
    "gpt_bigcode": gpt(
        lambda c, kind: attention(GPT_NAMES, bias=True)(bigcode_heads(c), kind),
        plain("mlp.c_fc mlp.c_proj"),
        embed=tokens("wte", 0),
    ),
    "openai-gpt": gpt(
        attention(GPT_NAMES, bias=True),
        plain("mlp.c_fc mlp.c_proj", ffn=lambda c: 4 * c.hidden),
        embed=tokens("tokens_embed", 0),
        final_norm=False,
    ),
    "gpt_neo": decoder(
        attention("q_proj k_proj v_proj out_proj", out_bias=True),
        plain("c_fc c_proj"),
        embed=tokens("wte", 0),
        norm_arrays=2,
        kinds=lambda c: ["sliding_attention" if kind == "local" else "full_attention" for kind in gpt_neo_layers(c)],
    ),
    "gptj": gpt(attention("q_proj k_proj v_proj out_proj"), plain("fc_in fc_out"), norms=1, head=output(bias=True)),
    "codegen": gpt(attention("qkv_proj out_proj"), plain("fc_in fc_out"), norms=1, head=output(bias=True)),
    "ctrl": gpt(attention("Wq Wk Wv dense", bias=True), plain("ffn.0 ffn.2"), head=output(bias=True)),
    "opt": decoder(
        attention("q_proj k_proj v_proj out_proj", bias="enable_bias"),
        plain(bias="enable_bias"),
        embed=opt_tokens,
        norm_arrays=bigger_norm,
        final_norm=lambda c: c["do_layer_norm_before"] and not c["_remove_final_layer_norm"],
        head=opt_head,
    ),
    "biogpt": gpt(attention("q_proj k_proj v_proj out_proj", bias=True), plain(), embed=tokens(positions=2)),
    "xglm": gpt(attention("q_proj k_proj v_proj out_proj", bias=True), plain()),
    "bloom": gpt(
        attention("query_key_value dense", bias=True),
        plain("dense_h_to_4h dense_4h_to_h", ffn=lambda c: 4 * c.hidden),
        embed=tokens("word_embeddings", extra=norms(1, 2)),
    ),
    "mpt": decoder(
        attention("Wqkv out_proj"),
        plain("up_proj down_proj", bias=False, ffn=lambda c: 4 * c.hidden),
        kinds=every("full_attention"),
    ),
    "falcon": gpt(falcon_attention, plain("dense_h_to_4h dense_4h_to_h", bias="bias"), norms=falcon_norms),
}


def gpt_neo_layers(c: Settings) -> list[str]:
    """``attention_types`` [[[global, local], 12]]: a pattern and how often."""
    told = c["attention_layers"]
    if told:
        return told
    usual: list[tuple[list[str], int]] = [(["global", "local"], c.layers // 2)]
    pairs = c["attention_types"] or usual
    return [kind for pattern, times in pairs for _ in range(times) for kind in pattern]
