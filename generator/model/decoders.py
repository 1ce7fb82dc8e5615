"""Decoders: one row a model type, as the modeling files of Transformers 5.23 build them."""

from __future__ import annotations

from generator.model.blocks import attention, gated, latent_attention, moe, norms, plain
from generator.model.parts import Item, embedding, linear, norm, vector
from generator.model.settings import Settings
from generator.model.stacks import Row, alternating, decoder, every, output, qwen_windows, tokens

LLAMA = decoder(attention(bias="attention_bias"), gated(bias="mlp_bias"))
BARE = decoder(attention(), gated())
QWEN3_ATTENTION = attention(bias="attention_bias", qk_norm="head")
GPT_NAMES = "attn.c_attn attn.c_proj"
CONV1D = {"norm_arrays": 2, "gated": False, "kinds": every("full_attention")}


def qwen_sparse(c: Settings) -> list[bool]:
    """Layers with experts: every ``decoder_sparse_step``-th, but those that the config lists as dense."""
    dense, step = c["mlp_only_layers"] or (), c["decoder_sparse_step"] or 1
    some = (c.size("experts") or 0) > 0
    return [some and i not in dense and (i + 1) % step == 0 for i in range(c.layers)]


def after_first(c: Settings) -> list[bool]:
    """DeepSeek: the first ``first_k_dense_replace`` layers are dense, unless the config lists the layers."""
    told = c["mlp_layer_types"]
    if told:
        return [kind == "sparse" for kind in told]
    return [i >= (c["first_k_dense_replace"] or 0) for i in range(c.layers)]


def shared_width(c: Settings) -> int:
    return (c["n_shared_experts"] or c["moe_num_shared_experts"] or 0) * c.size("expert_ffn")


def interleaved(c: Settings) -> list[bool]:
    """Llama 4: the layers that the config lists, else every ``interleave_moe_layer_step``-th."""
    told, step = c["moe_layers"], c["interleave_moe_layer_step"]
    listed = range(step - 1, c.layers, step) if told is None else told
    return [i in set(listed) for i in range(c.layers)]


def ernie_sparse(c: Settings) -> list[bool]:
    first, last, step = c["moe_layer_start_index"], c["moe_layer_end_index"], c["moe_layer_interval"]
    last = c.layers - 1 if last in (None, -1) else last
    return [(i + 1) % step == 0 and first <= i <= last for i in range(c.layers)]


def falcon_attention(c: Settings, kind: str) -> list[Item]:
    """One projection for queries, keys and values; old models keep one key head (or as many as queries)."""
    return attention("query_key_value dense", bias="bias")(falcon_heads(c), kind)


def falcon_heads(c: Settings) -> Settings:
    one = c["multi_query"] and not c["new_decoder_architecture"]
    kept = c["num_kv_heads"] if c["new_decoder_architecture"] else (1 if one else c.heads)
    return Settings({**c.told, "num_key_value_heads": kept or c.heads}, c.type)


def falcon_norms(c: Settings) -> int:
    apart = c["num_ln_in_parallel_attn"]
    apart = 2 if apart is None and c["new_decoder_architecture"] else apart
    if c["parallel_attn"]:
        return 2 if c["new_decoder_architecture"] and apart == 2 else 1
    return 2


def bigcode_heads(c: Settings) -> Settings:
    return Settings({**c.told, "num_key_value_heads": 1 if c["multi_query"] else c.heads}, c.type)


def opt_tokens(c: Settings) -> list[Item]:
    narrow = c["word_embed_proj_dim"] or c.hidden
    made: list[Item] = [embedding("embed_tokens", c.vocab, narrow), embedding("positions", c.size("positions") + 2, c.hidden)]
    if narrow != c.hidden:
        made += [linear("project_in", narrow, c.hidden), linear("project_out", c.hidden, narrow)]
    return made


def opt_head(c: Settings) -> list[Item]:
    (head,) = output()(c)
    return [head._replace(inputs=c["word_embed_proj_dim"] or c.hidden)]


def stablelm_norms(c: Settings) -> list[Item]:
    """Norms of every head apart (LayerNorms without bias)."""
    return [vector("qk_layernorm", (c.heads + c.kv_heads) * c.head_dim)] if c["qk_layernorm"] else []


def bigger_norm(c: Settings) -> int:
    return 2 if c["layer_norm_elementwise_affine"] else 0


def lfm2_width(c: Settings) -> int:
    """Two thirds of the configured width, rounded up to a multiple."""
    told = c["block_ff_dim"] or c["intermediate_size"]
    if not c["block_auto_adjust_ff_dim"]:
        return told
    width = int(2 * told / 3)
    if c["block_ffn_dim_multiplier"] is not None:
        width = int(c["block_ffn_dim_multiplier"] * width)
    step = c["block_multiple_of"]
    return step * -(-width // step)


def smollm_kinds(c: Settings) -> list[str]:
    told = c["layer_types"]
    return list(told) if told else ["full_attention"] * c.layers


DECODERS: dict[str, Row] = {
    # Llama and what differs from it by biases and norms
    "llama": decoder(attention(bias="attention_bias"), gated(bias="mlp_bias"), kinds=every("full_attention")),
    "internlm3": LLAMA,
    "granite": LLAMA,
    "helium": decoder(attention(bias="attention_bias", out_bias=False), gated(bias="mlp_bias")),
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
        attention(bias="attention_bias", qk_norm="head"), gated(), norms=4, kinds=alternating("_sliding_window_pattern")
    ),
    "vaultgemma": decoder(attention(bias="attention_bias"), gated(), kinds=alternating(2)),
    "cohere": decoder(attention(bias="attention_bias", qk_norm="heads", when="use_qk_norm"), gated(), norms=1),
    "cohere2": decoder(attention(bias="attention_bias"), gated(), norms=1, kinds=alternating(4)),
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
    "nemotron": decoder(attention(bias="attention_bias"), plain("up_proj down_proj", bias="mlp_bias"), norm_arrays=2, gated=False),
    "arcee": decoder(attention(bias="attention_bias"), plain("up_proj down_proj", bias="mlp_bias"), gated=False),
    "apertus": decoder(
        attention(bias="attention_bias", qk_norm="head"),
        plain("up_proj down_proj", bias="mlp_bias", extra=lambda c: [vector("act_fn.alpha", 2)]),
        gated=False,
    ),
    "starcoder2": decoder(attention(bias="use_bias"), plain("c_fc c_proj", bias="use_bias"), norm_arrays=2, gated=False),
    "phi": decoder(
        attention("q_proj k_proj v_proj dense", bias=True, qk_norm="head", norm_arrays=2, when="qk_layernorm"),
        plain(),
        norms=1,
        norm_arrays=2,
        gated=False,
        head=output(bias=True),
    ),
    "persimmon": decoder(
        attention("query_key_value dense", bias=True, qk_norm="head", norm_arrays=2, when="qk_layernorm"),
        plain("dense_h_to_4h dense_4h_to_h"),
        norm_arrays=2,
        gated=False,
    ),
    "gpt_neox": decoder(
        attention("query_key_value dense", bias="attention_bias"),
        plain("dense_h_to_4h dense_4h_to_h"),
        **CONV1D,
    ),
    "gpt2": decoder(attention(GPT_NAMES, bias=True), plain("mlp.c_fc mlp.c_proj"), embed=tokens("wte", 0), **CONV1D),
    "gpt_bigcode": decoder(
        lambda c, kind: attention(GPT_NAMES, bias=True)(bigcode_heads(c), kind),
        plain("mlp.c_fc mlp.c_proj"),
        embed=tokens("wte", 0),
        **CONV1D,
    ),
    "openai-gpt": decoder(
        attention(GPT_NAMES, bias=True),
        plain("mlp.c_fc mlp.c_proj", ffn=lambda c: 4 * c.hidden),
        embed=tokens("tokens_embed", 0),
        final_norm=False,
        **CONV1D,
    ),
    "gpt_neo": decoder(
        attention("q_proj k_proj v_proj out_proj", out_bias=True),
        plain("c_fc c_proj"),
        embed=tokens("wte", 0),
        norm_arrays=2,
        gated=False,
        kinds=lambda c: ["sliding_attention" if kind == "local" else "full_attention" for kind in gpt_neo_layers(c)],
    ),
    "gptj": decoder(
        attention("q_proj k_proj v_proj out_proj"), plain("fc_in fc_out"), norms=1, head=output(bias=True), **CONV1D
    ),
    "codegen": decoder(attention("qkv_proj out_proj"), plain("fc_in fc_out"), norms=1, head=output(bias=True), **CONV1D),
    "ctrl": decoder(attention("Wq Wk Wv dense", bias=True), plain("ffn.0 ffn.2"), head=output(bias=True), **CONV1D),
    "opt": decoder(
        attention("q_proj k_proj v_proj out_proj", bias="enable_bias"),
        plain(bias="enable_bias"),
        embed=opt_tokens,
        norm_arrays=bigger_norm,
        final_norm="do_layer_norm_before",
        head=opt_head,
        gated=False,
    ),
    "biogpt": decoder(attention("q_proj k_proj v_proj out_proj", bias=True), plain(), embed=tokens(positions=2), **CONV1D),
    "xglm": decoder(attention("q_proj k_proj v_proj out_proj", bias=True), plain(), **CONV1D),
    "bloom": decoder(
        attention("query_key_value dense", bias=True),
        plain("dense_h_to_4h dense_4h_to_h", ffn=lambda c: 4 * c.hidden),
        embed=tokens("word_embeddings", extra=norms(1, 2)),
        **CONV1D,
    ),
    "mpt": decoder(
        attention("Wqkv out_proj"),
        plain("up_proj down_proj", bias=False, ffn=lambda c: c["expansion_ratio"] * c.hidden),
        gated=False,
        kinds=every("full_attention"),
    ),
    "falcon": decoder(
        falcon_attention,
        plain("dense_h_to_4h dense_4h_to_h", bias="bias"),
        norms=falcon_norms,
        **CONV1D,
    ),
    # experts
    "mixtral": decoder(attention(), None, moe=moe()),
    "qwen2_moe": decoder(
        attention(bias="qkv_bias", out_bias=False),
        gated(),
        moe=moe(shared=lambda c: c["shared_expert_intermediate_size"], shared_gate=True),
        sparse=qwen_sparse,
        kinds=qwen_windows,
    ),
    "qwen3_moe": decoder(QWEN3_ATTENTION, gated(), moe=moe(), sparse=qwen_sparse, kinds=qwen_windows),
    "olmoe": decoder(attention(bias="attention_bias", qk_norm="full"), None, moe=moe()),
    "flex_olmo": decoder(attention(bias="attention_bias", qk_norm="full"), None, moe=moe()),
    "granitemoe": decoder(attention(bias="attention_bias"), None, moe=moe()),
    "granitemoeshared": decoder(
        attention(bias="attention_bias"),
        None,
        moe=moe(
            shared=lambda c: c["shared_intermediate_size"],
            shared_block=lambda size: gated("input_linear output_linear", ffn=size),
        ),
    ),
    "phimoe": decoder(
        attention(bias="attention_bias"), None, moe=moe(router="linear"), norm_arrays=2, head=output("lm_head_bias")
    ),
    "gpt_oss": decoder(
        attention(bias="attention_bias", extra=lambda c: [vector("sinks", c.heads)]),
        None,
        moe=moe(bias=True, router_bias=True),
        kinds=alternating(2),
    ),
    "deepseek_v2": decoder(latent_attention(), gated(bias="mlp_bias"), moe=moe(shared=shared_width), sparse=after_first),
    "deepseek_v3": decoder(latent_attention(), gated(), moe=moe(shared=shared_width), sparse=after_first),
    "glm4_moe": decoder(
        attention(bias="attention_bias", out_bias=False, qk_norm="head", when="use_qk_norm"),
        gated(),
        moe=moe(shared=shared_width),
        sparse=after_first,
    ),
    "dots1": decoder(
        QWEN3_ATTENTION,
        gated(),
        moe=moe(shared=shared_width),
        sparse=after_first,
    ),
    "ernie4_5_moe": decoder(
        attention(bias="use_bias"),
        gated(bias="use_bias"),
        moe=moe(shared=shared_width, correction=True),
        sparse=ernie_sparse,
    ),
    "llama4_text": decoder(
        attention(bias="attention_bias"),
        gated(ffn=lambda c: c["intermediate_size_mlp"]),
        moe=moe(router="linear", shared=lambda c: c.ffn),
        sparse=interleaved,
        kinds=alternating("no_rope_layer_interval", other="chunked_attention"),
    ),
    "minimax_m2": decoder(attention(qk_norm="full"), None, moe=moe()),
    "hunyuan_v1_moe": decoder(
        attention(bias="attention_bias", qk_norm="head"), None, moe=moe(router="linear", shared=lambda c: c.ffn)
    ),
}


def gpt_neo_layers(c: Settings) -> list[str]:
    """``attention_types`` [[[global, local], 12]]: a pattern and how often."""
    told = c["attention_layers"]
    if told:
        return told
    pairs = c["attention_types"] or [[["global", "local"], c.layers // 2]]
    return [kind for pattern, times in pairs for _ in range(times) for kind in pattern]
