"""Decoders: one row per model type, as the modeling files of Transformers 5.23 build them.

Biases and norms are no config keys in most types: each row says what the type's ``modeling_<type>.py`` hard-codes.
"""

from __future__ import annotations

from functools import partial

from generator.model.blocks import attention, gated_mlp, hidden_norms, plain_mlp, read_hidden
from generator.model.builders import (
    Family,
    alternate_kinds,
    decoder,
    list_qwen_kinds,
    output_layer,
    repeat_kind,
    token_embeddings,
)
from generator.model.components import Component, Scores, embedding, linear, norm, vector
from generator.model.settings import Settings

LLAMA = decoder(attention(bias="attention_bias"), gated_mlp(bias="mlp_bias"))
BARE = decoder(attention(), gated_mlp())
QWEN3_ATTENTION = attention(bias="attention_bias", qk_norm="head")
GPT_NAMES = "attn.c_attn attn.c_proj"
gpt = partial(decoder, norm_arrays=2, kinds=repeat_kind())


def build_falcon_attention(c: Settings, kind: str) -> list[Component]:
    """One projection for queries, keys and values (modeling_falcon.py: FalconAttention)."""
    components = attention("query_key_value dense", bias="bias")(set_falcon_heads(c), kind)
    # _split_heads of the new architecture repeats keys and values for all query heads before the cache takes them
    held = 2 * c.heads * c.head_dim if c["new_decoder_architecture"] else 0
    return [x._replace(held=held) if isinstance(x, Scores) else x for x in components]


def build_gpt_neo_attention(c: Settings, kind: str) -> list[Component]:
    """Its local layers mask what is too old, and their cache keeps it (modeling_gpt_neo.py: past_key_values.update)."""
    components = attention("q_proj k_proj v_proj out_proj", out_bias=True)(c, kind)
    return [x._replace(holds_all=True) if isinstance(x, Scores) else x for x in components]


def set_falcon_heads(c: Settings) -> Settings:
    """``num_kv_heads`` counts in the new architecture (40B, 180B) alone; the old one has a single key head or all of
    them (modeling_falcon.py: qkv_out_dim)."""
    if c["new_decoder_architecture"]:
        return c.replace(num_key_value_heads=c["num_kv_heads"] or c.heads)
    return c.replace(num_key_value_heads=1 if c["multi_query"] else c.heads)


def count_falcon_norms(c: Settings) -> int:
    """Attention and feed-forward beside each other read one norm, or two where the new architecture has them apart
    (modeling_falcon.py: ln_attn, ln_mlp)."""
    if not c["parallel_attn"]:
        return 2
    apart = c["num_ln_in_parallel_attn"]
    return 2 if c["new_decoder_architecture"] and apart in (None, 2) else 1


def set_bigcode_heads(c: Settings) -> Settings:
    """SantaCoder and StarCoder: one key head for all queries (multi-query attention)."""
    return c.replace(num_key_value_heads=1 if c["multi_query"] else c.heads)


def build_opt_embeddings(c: Settings) -> list[Component]:
    """OPT-350M embeds in 512 and computes in 1024; two positions more than the config has (``offset``)."""
    narrow = c["word_embed_proj_dim"] or c.hidden
    components: list[Component] = [
        embedding("embed_tokens", c.vocab, narrow),
        embedding("positions", c.size("positions") + 2, c.hidden),
    ]
    if narrow != c.hidden:
        components += [linear("project_in", narrow, c.hidden), linear("project_out", c.hidden, narrow)]
    return components


def build_opt_head(c: Settings) -> list[Component]:
    """The output layer reads the embedding's width, behind ``project_out`` (modeling_opt.py: lm_head)."""
    return output_layer()(c.replace(hidden_size=c["word_embed_proj_dim"] or c.hidden))


def build_stablelm_norms(c: Settings) -> list[Component]:
    """A LayerNorm without bias for each head (modeling_stablelm.py: StableLmLayerNormPerHead)."""
    return [vector("qk_layernorm", (c.heads + c.kv_heads) * c.head_dim)] if c["qk_layernorm"] else []


def count_opt_norm_arrays(c: Settings) -> int:
    """Without ``layer_norm_elementwise_affine`` norms have neither weight nor bias."""
    return 2 if c["layer_norm_elementwise_affine"] else 0


def list_smollm_kinds(c: Settings) -> list[str]:
    """A window only where ``layer_types`` lists it: ``sliding_window`` without ``use_sliding_window`` means nothing
    (configuration_smollm3.py: __post_init__)."""
    listed = c["layer_types"]
    return list(listed) if listed else ["full_attention"] * c.layers


FAMILIES: dict[str, Family] = {
    # Llama and what differs from it by biases and norms
    "llama": decoder(attention(bias="attention_bias"), gated_mlp(bias="mlp_bias"), kinds=repeat_kind("full_attention")),
    "internlm3": LLAMA,
    "granite": LLAMA,
    # modeling_helium.py: o_proj is hidden × hidden whatever the heads
    "helium": decoder(attention(bias="attention_bias", out_bias=False, out=read_hidden), gated_mlp(bias="mlp_bias")),
    "smollm3": decoder(attention(bias="attention_bias"), gated_mlp(bias="mlp_bias"), kinds=list_smollm_kinds),
    "seed_oss": decoder(attention(bias="attention_bias", out_bias="attention_out_bias"), gated_mlp(bias="mlp_bias")),
    "ernie4_5": decoder(attention(bias="use_bias"), gated_mlp(bias="use_bias")),
    "mistral": BARE,
    "ministral": BARE,
    "ministral3": BARE,
    "qwen2": decoder(attention(bias=True, out_bias=False), gated_mlp(), kinds=list_qwen_kinds),
    "qwen3": decoder(QWEN3_ATTENTION, gated_mlp(), kinds=list_qwen_kinds),
    "hunyuan_v1_dense": decoder(attention(bias="attention_bias", qk_norm="head"), gated_mlp()),
    "exaone4": decoder(attention(qk_norm="head"), gated_mlp(), kinds=alternate_kinds("sliding_window_pattern")),
    # OlmoLayerNorm has neither weight nor bias
    "olmo": decoder(attention(bias="attention_bias"), gated_mlp(), norm_arrays=0),
    "olmo2": decoder(attention(bias="attention_bias", qk_norm="full"), gated_mlp()),
    "olmo3": decoder(attention(bias="attention_bias", qk_norm="full"), gated_mlp(), kinds=alternate_kinds(4)),
    "phi3": decoder(attention("qkv_proj o_proj"), gated_mlp("gate_up_proj down_proj")),
    "glm": decoder(attention(bias="attention_bias", out_bias=False), gated_mlp("gate_up_proj down_proj")),
    "glm4": decoder(attention(bias="attention_bias", out_bias=False), gated_mlp("gate_up_proj down_proj"), norms=4),
    "gemma": decoder(attention(bias="attention_bias"), gated_mlp()),
    # Gemma 2 and 3, GLM 4: norms before and after both attention and feed-forward (post_attention_layernorm,
    # post_feedforward…)
    "gemma2": decoder(attention(bias="attention_bias"), gated_mlp(), norms=4, kinds=alternate_kinds(2)),
    "gemma3_text": decoder(
        attention(bias="attention_bias", qk_norm="head"),
        gated_mlp(),
        norms=4,
        kinds=alternate_kinds("sliding_window_pattern", default=6),
    ),
    "vaultgemma": decoder(attention(bias="attention_bias"), gated_mlp(), kinds=alternate_kinds(2)),
    # Cohere: attention and feed-forward beside each other read one norm (modeling_cohere.py: CohereDecoderLayer)
    "cohere": decoder(attention(bias="attention_bias", qk_norm="heads", when="use_qk_norm"), gated_mlp(), norms=1),
    "cohere2": decoder(
        attention(bias="attention_bias"),
        gated_mlp(),
        norms=1,
        kinds=alternate_kinds("sliding_window_pattern", default=4),
    ),
    # modeling_bitnet.py: attn_sub_norm and ffn_sub_norm, before what is quantized to ternary weights
    "bitnet": decoder(
        attention(bias="attention_bias", extra=hidden_norms(1)),
        gated_mlp(extra=lambda c: norm("ffn_sub_norm", c.ffn, 1)),
    ),
    "stablelm": decoder(
        attention(bias="use_qkv_bias", out_bias=False, extra=build_stablelm_norms),
        gated_mlp(),
        norms=lambda c: 1 if c["use_parallel_residual"] else 2,
        norm_arrays=2,
    ),
    # feed-forwards without a gate
    "nemotron": decoder(
        attention(bias="attention_bias"), plain_mlp("up_proj down_proj", bias="mlp_bias"), norm_arrays=2
    ),
    "arcee": decoder(attention(bias="attention_bias"), plain_mlp("up_proj down_proj", bias="mlp_bias")),
    "apertus": decoder(
        attention(bias="attention_bias", qk_norm="head"),
        # xIELU has two trained parameters per layer (activations.py: alpha_p, alpha_n)
        plain_mlp("up_proj down_proj", bias="mlp_bias", extra=lambda c: [vector("act_fn.alpha", 2)]),
    ),
    "starcoder2": decoder(attention(bias="use_bias"), plain_mlp("c_fc c_proj", bias="use_bias"), norm_arrays=2),
    "phi": decoder(
        attention("q_proj k_proj v_proj dense", bias=True, qk_norm="head", norm_arrays=2, when="qk_layernorm"),
        plain_mlp(),
        norms=1,
        norm_arrays=2,
        head=output_layer(bias=True),
    ),
    "persimmon": decoder(
        attention("query_key_value dense", bias=True, qk_norm="head", norm_arrays=2, when="qk_layernorm"),
        plain_mlp("dense_h_to_4h dense_4h_to_h"),
        norm_arrays=2,
    ),
    "gpt_neox": gpt(
        attention("query_key_value dense", bias="attention_bias"), plain_mlp("dense_h_to_4h dense_4h_to_h")
    ),
    "gpt2": gpt(attention(GPT_NAMES, bias=True), plain_mlp("mlp.c_fc mlp.c_proj"), embed=token_embeddings("wte", 0)),
    "gpt_bigcode": gpt(
        lambda c, kind: attention(GPT_NAMES, bias=True)(set_bigcode_heads(c), kind),
        plain_mlp("mlp.c_fc mlp.c_proj"),
        embed=token_embeddings("wte", 0),
    ),
    # GPT-1 normalizes after its blocks, so none comes last; its n_inner is not read (modeling_openai.py: MLP(4 * nx))
    "openai-gpt": gpt(
        attention(GPT_NAMES, bias=True),
        plain_mlp("mlp.c_fc mlp.c_proj", ffn=lambda c: 4 * c.hidden),
        embed=token_embeddings("tokens_embed", 0),
        final_norm=False,
    ),
    # modeling_gpt_neo.py: only out_proj has a bias
    "gpt_neo": decoder(
        build_gpt_neo_attention,
        plain_mlp("c_fc c_proj"),
        embed=token_embeddings("wte", 0),
        norm_arrays=2,
        kinds=lambda c: [
            "sliding_attention" if kind == "local" else "full_attention" for kind in list_gpt_neo_layers(c)
        ],
    ),
    # GPT-J, CodeGen and Phi: both halves of a block read one norm (ln_1), and the output layer has a bias
    "gptj": gpt(
        attention("q_proj k_proj v_proj out_proj"), plain_mlp("fc_in fc_out"), norms=1, head=output_layer(bias=True)
    ),
    "codegen": gpt(attention("qkv_proj out_proj"), plain_mlp("fc_in fc_out"), norms=1, head=output_layer(bias=True)),
    "ctrl": gpt(attention("Wq Wk Wv dense", bias=True), plain_mlp("ffn.0 ffn.2"), head=output_layer(bias=True)),
    "opt": decoder(
        attention("q_proj k_proj v_proj out_proj", bias="enable_bias"),
        plain_mlp(bias="enable_bias"),
        embed=build_opt_embeddings,
        norm_arrays=count_opt_norm_arrays,
        final_norm=lambda c: c["do_layer_norm_before"] and not c["_remove_final_layer_norm"],
        head=build_opt_head,
    ),
    # XGLM's positions are computed, not learned (a buffer); BioGPT's are OPT's, two more than the config has
    "biogpt": gpt(
        attention("q_proj k_proj v_proj out_proj", bias=True), plain_mlp(), embed=token_embeddings(positions=2)
    ),
    "xglm": gpt(attention("q_proj k_proj v_proj out_proj", bias=True), plain_mlp()),
    # BLOOM norms its embeddings too (modeling_bloom.py: word_embeddings_layernorm); ALiBi
    # has no weights
    "bloom": gpt(
        attention("query_key_value dense", bias=True),
        plain_mlp("dense_h_to_4h dense_4h_to_h", ffn=lambda c: 4 * c.hidden),
        embed=token_embeddings("word_embeddings", extra=hidden_norms(1, 2)),
    ),
    # modeling_mpt.py: 4 x hidden whatever expansion_ratio; its LayerNorms' biases are None
    "mpt": decoder(
        attention("Wqkv out_proj"),
        plain_mlp("up_proj down_proj", bias=False, ffn=lambda c: 4 * c.hidden),
        kinds=repeat_kind("full_attention"),
    ),
    "falcon": gpt(
        build_falcon_attention, plain_mlp("dense_h_to_4h dense_4h_to_h", bias="bias"), norms=count_falcon_norms
    ),
}


def list_gpt_neo_layers(c: Settings) -> list[str]:
    """``attention_types`` [[[global, local], 12]]: a pattern and how often it is repeated."""
    listed = c["attention_layers"]
    if listed:
        return listed
    default: list[tuple[list[str], int]] = [(["global", "local"], c.layers // 2)]
    pairs = c["attention_types"] or default
    return [kind for pattern, times in pairs for _ in range(times) for kind in pattern]
