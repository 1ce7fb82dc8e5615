"""Decoders with experts: one row per model type, as the modeling files of Transformers 5.23 build them."""

from __future__ import annotations

from generator.model.blocks import attention, build_latent_attention, gated_mlp, routed_experts
from generator.model.builders import Family, alternate_kinds, decoder, list_qwen_kinds, output_layer
from generator.model.components import vector
from generator.model.decoders import QWEN3_ATTENTION
from generator.model.settings import Settings


def mark_qwen_moe_layers(c: Settings) -> list[bool]:
    """Layers with experts: every ``decoder_sparse_step``-th, but those that the config lists as dense."""
    dense, step = c["mlp_only_layers"] or (), c["decoder_sparse_step"] or 1
    any_experts = (c.size("experts") or 0) > 0
    return [any_experts and i not in dense and (i + 1) % step == 0 for i in range(c.layers)]


def mark_deepseek_moe_layers(c: Settings) -> list[bool]:
    """DeepSeek: the first ``first_k_dense_replace`` layers are dense, unless the config lists the layers."""
    listed = c["mlp_layer_types"]
    if listed:
        return [kind == "sparse" for kind in listed]
    return [i >= (c["first_k_dense_replace"] or 0) for i in range(c.layers)]


def compute_shared_width(c: Settings) -> int:
    """All shared experts of a layer are one wide feed-forward (modeling_deepseek_v3.py: shared_experts)."""
    return (c["n_shared_experts"] or c["moe_num_shared_experts"] or 0) * c.size("expert_ffn")


def list_dots1_kinds(c: Settings) -> list[str]:
    """Layers from ``max_window_layers`` on see a window; there is no ``use_sliding_window`` as Qwen has
    (configuration_dots1.py)."""
    return list_qwen_kinds(c.replace(use_sliding_window=True))


def mark_llama4_moe_layers(c: Settings) -> list[bool]:
    """Llama 4: the layers that the config lists, else every ``interleave_moe_layer_step``-th."""
    listed, step = c["moe_layers"], c["interleave_moe_layer_step"]
    moe_layers = set(range(step - 1, c.layers, step) if listed is None else listed)
    return [i in moe_layers for i in range(c.layers)]


def mark_ernie_moe_layers(c: Settings) -> list[bool]:
    """Every ``moe_layer_interval``-th between the two ends; -1 is the last (configuration_ernie4_5_moe.py)."""
    first, last, step = c["moe_layer_start_index"], c["moe_layer_end_index"], c["moe_layer_interval"]
    last = c.layers - 1 if last in (None, -1) else last
    return [(i + 1) % step == 0 and first <= i <= last for i in range(c.layers)]


FAMILIES: dict[str, Family] = {
    "mixtral": decoder(attention(), None, moe=routed_experts()),
    "qwen2_moe": decoder(
        attention(bias="qkv_bias", out_bias=False),
        gated_mlp(),
        moe=routed_experts(shared=lambda c: c["shared_expert_intermediate_size"], shared_gate=True),
        moe_layers=mark_qwen_moe_layers,
        kinds=list_qwen_kinds,
    ),
    "qwen3_moe": decoder(
        QWEN3_ATTENTION, gated_mlp(), moe=routed_experts(), moe_layers=mark_qwen_moe_layers, kinds=list_qwen_kinds
    ),
    # modeling_olmoe.py reads a head_dim that its config class does not have: Transformers has to show what it makes of
    # one
    "olmoe": decoder(attention(bias="attention_bias", qk_norm="full"), None, moe=routed_experts())._replace(
        refuses=("head_dim",)
    ),
    "flex_olmo": decoder(attention(bias="attention_bias", qk_norm="full"), None, moe=routed_experts()),
    "granitemoe": decoder(attention(bias="attention_bias"), None, moe=routed_experts()),
    "granitemoeshared": decoder(
        attention(bias="attention_bias"),
        None,
        moe=routed_experts(
            shared=lambda c: c["shared_intermediate_size"],
            shared_block=lambda size: gated_mlp("input_linear output_linear", ffn=size, role="shared"),
        ),
    ),
    "phimoe": decoder(
        attention(bias="attention_bias"),
        None,
        moe=routed_experts(router="linear"),
        norm_arrays=2,
        head=output_layer("lm_head_bias"),
    ),
    "gpt_oss": decoder(
        # a learned score per head beside the keys, so that a head may attend to nothing (modeling_gpt_oss.py: sinks)
        attention(bias="attention_bias", extra=lambda c: [vector("sinks", c.heads)]),
        None,
        moe=routed_experts(bias=True, router_bias=True),
        kinds=alternate_kinds(2),
    ),
    "deepseek_v2": decoder(
        build_latent_attention,
        gated_mlp(bias="mlp_bias"),
        moe=routed_experts(
            shared=compute_shared_width, shared_block=lambda size: gated_mlp(bias="mlp_bias", ffn=size, role="shared")
        ),
        moe_layers=mark_deepseek_moe_layers,
    ),
    "deepseek_v3": decoder(
        build_latent_attention,
        gated_mlp(),
        moe=routed_experts(shared=compute_shared_width),
        moe_layers=mark_deepseek_moe_layers,
    ),
    "glm4_moe": decoder(
        attention(bias="attention_bias", out_bias=False, qk_norm="head", when="use_qk_norm"),
        gated_mlp(),
        moe=routed_experts(shared=compute_shared_width),
        moe_layers=mark_deepseek_moe_layers,
    ),
    "dots1": decoder(
        QWEN3_ATTENTION,
        gated_mlp(),
        moe=routed_experts(shared=compute_shared_width),
        moe_layers=mark_deepseek_moe_layers,
        kinds=list_dots1_kinds,
    ),
    "ernie4_5_moe": decoder(
        attention(bias="use_bias"),
        gated_mlp(bias="use_bias"),
        moe=routed_experts(
            shared=compute_shared_width,
            shared_block=lambda size: gated_mlp(bias="use_bias", ffn=size, role="shared"),
            correction=True,
        ),
        moe_layers=mark_ernie_moe_layers,
        head=output_layer("use_bias"),
    ),
    # intermediate_size is the experts' and the shared one's width, intermediate_size_mlp the dense layers'. Where the
    # config says nothing of layer_types, layers with rotary positions see a chunk, every 4th without them everything
    # (configuration_llama4.py)
    "llama4_text": decoder(
        attention(bias="attention_bias"),
        gated_mlp(ffn=lambda c: c["intermediate_size_mlp"]),
        moe=routed_experts(router="linear", shared=lambda c: c.ffn),
        moe_layers=mark_llama4_moe_layers,
        kinds=alternate_kinds("no_rope_layer_interval", other="chunked_attention"),
    ),
    "minimax_m2": decoder(attention(qk_norm="full"), None, moe=routed_experts()),
    # modeling_hunyuan_v1_moe.py: shared_mlp has the experts' width, however many num_shared_expert names
    "hunyuan_v1_moe": decoder(
        attention(bias="attention_bias", qk_norm="head"),
        None,
        moe=routed_experts(router="linear", shared=lambda c: c.ffn),
    ),
}
