"""Decoders with experts: one row a model type, as the modeling files of Transformers 5.23 build them."""

from __future__ import annotations

from generator.model.blocks import attention, gated, latent_attention, moe
from generator.model.decoders import QWEN3_ATTENTION
from generator.model.parts import vector
from generator.model.settings import Settings
from generator.model.stacks import Row, alternating, decoder, output, qwen_windows


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


ROWS: dict[str, Row] = {
    "mixtral": decoder(attention(), None, moe=moe()),
    "qwen2_moe": decoder(
        attention(bias="qkv_bias", out_bias=False),
        gated(),
        moe=moe(shared=lambda c: c["shared_expert_intermediate_size"], shared_gate=True),
        sparse=qwen_sparse,
        kinds=qwen_windows,
    ),
    "qwen3_moe": decoder(QWEN3_ATTENTION, gated(), moe=moe(), sparse=qwen_sparse, kinds=qwen_windows),
    "olmoe": decoder(attention(bias="attention_bias", qk_norm="full"), None, moe=moe())._replace(refuses=("head_dim",)),
    "flex_olmo": decoder(attention(bias="attention_bias", qk_norm="full"), None, moe=moe()),
    "granitemoe": decoder(attention(bias="attention_bias"), None, moe=moe()),
    "granitemoeshared": decoder(
        attention(bias="attention_bias"),
        None,
        moe=moe(
            shared=lambda c: c["shared_intermediate_size"],
            shared_block=lambda size: gated("input_linear output_linear", ffn=size, role="shared"),
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
    "deepseek_v2": decoder(
        latent_attention(),
        gated(bias="mlp_bias"),
        moe=moe(shared=shared_width, shared_block=lambda size: gated(bias="mlp_bias", ffn=size, role="shared")),
        sparse=after_first,
    ),
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
        moe=moe(
            shared=shared_width,
            shared_block=lambda size: gated(bias="use_bias", ffn=size, role="shared"),
            correction=True,
        ),
        sparse=ernie_sparse,
        head=output("use_bias"),
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
