"""Decoders whose layers keep a state of fixed size, alone or beside attention, as Transformers 5.23 builds them."""

from __future__ import annotations

from generator.model.blocks import attention, gated_mlp, join_blocks, plain_mlp, routed_experts
from generator.model.builders import (
    Family,
    LayerKinds,
    alternate_kinds,
    decoder,
    list_layer_kinds,
    output_layer,
    repeat_kind,
)
from generator.model.components import Component, linear, norm
from generator.model.moe import mark_qwen_moe_layers
from generator.model.recurrent import (
    build_channel_mix,
    build_delta_net,
    build_gated_recurrence,
    build_lightning_attention,
    build_olmo_delta_net,
    build_short_conv,
    build_time_mix,
    mamba,
    mamba2,
)
from generator.model.settings import Settings

KIND_NAMES = {"mamba": "linear_attention", "attention": "full_attention", "recurrent": "linear_attention"}
"""names in the layer lists of published configs, and those that Transformers 5 uses (remap_legacy_layer_types)"""


def read_listed_kinds(default: str) -> LayerKinds:
    """The layers' kinds as the config lists them, all ``default`` without a list."""

    def kinds(c: Settings) -> list[str]:
        listed = c["layer_types"] or c["layers_block_type"]
        return [KIND_NAMES.get(kind, kind) for kind in listed] if listed else [default] * c.layers

    return kinds


def list_bamba_kinds(c: Settings) -> list[str]:
    attending = set(c["attn_layer_indices"] or ())
    return ["full_attention" if i in attending else "linear_attention" for i in range(c.layers)]


def list_jamba_kinds(c: Settings) -> list[str]:
    period, offset = c["attn_layer_period"], c["attn_layer_offset"]
    return ["full_attention" if i % period == offset else "linear_attention" for i in range(c.layers)]


def mark_jamba_moe_layers(c: Settings) -> list[bool]:
    period, offset = c["expert_layer_period"], c["expert_layer_offset"]
    return [c.size("experts") > 1 and i % period == offset for i in range(c.layers)]


def list_olmo_hybrid_kinds(c: Settings) -> list[str]:
    """Every fourth attends; a shallower model's last one does (configuration_olmo_hybrid.py: __post_init__)."""
    kinds = alternate_kinds(4, other="linear_attention")(c)
    return kinds if "full_attention" in kinds else [*kinds[:-1], "full_attention"]


def list_lfm2_kinds(c: Settings) -> list[str]:
    """Without either list all layers attend (configuration_lfm2.py: __post_init__)."""
    listed, attending = c["layer_types"], c["full_attn_idxs"]
    if listed:
        return list(listed)
    return ["full_attention" if attending is None or i in attending else "conv" for i in range(c.layers)]


def compute_lfm2_width(c: Settings) -> int:
    """Two thirds of the configured width, so that three matrices cost what two did, rounded up (modeling_lfm2.py:
    Lfm2MLP)."""
    configured = c["block_ff_dim"] or c["intermediate_size"]
    if not c["block_auto_adjust_ff_dim"]:
        return configured
    width = int(2 * configured / 3)
    if c["block_ffn_dim_multiplier"] is None:
        return width
    step = c["block_multiple_of"]
    return step * -(-int(c["block_ffn_dim_multiplier"] * width) // step)


def build_lfm2_head(c: Settings) -> list[Component]:
    """Published configs spell tie_word_embeddings ``tie_embedding`` (configuration_lfm2.py: __post_init__)."""
    return output_layer()(c.replace(tie_word_embeddings=c["tie_embedding"]) if c.has("tie_embedding") else c)


def list_minimax_kinds(c: Settings) -> list[str]:
    return list(c["layer_types"] or ()) or ["linear_attention" if i % 2 else "full_attention" for i in range(c.layers)]


def list_recurrent_gemma_kinds(c: Settings) -> list[str]:
    """The pattern over and over (configuration_recurrent_gemma.py: layer_types)."""
    pattern = list(c["block_types"])
    return ["linear_attention" if kind == "recurrent" else "sliding_attention" for kind in (pattern * 100)[: c.layers]]


def halve_ffn(c: Settings) -> int:
    """RecurrentGemma's config has the width of gate and up together (modeling_recurrent_gemma.py:
    RecurrentGemmaMlp)."""
    return c.ffn // 2


LETTERS = {"M": "linear_attention", "E": "moe", "*": "full_attention", "-": "mlp"}
"""of ``hybrid_override_pattern`` (configuration_nemotron_h.py: _pattern_to_list)"""


def list_nemotron_kinds(c: Settings) -> list[str]:
    """The list alone decides how many layers there are: num_hidden_layers is not read (configuration_nemotron_h.py)."""
    listed, pattern = c["layers_block_type"], c["hybrid_override_pattern"]
    if listed:
        return [KIND_NAMES.get(kind, kind) for kind in listed]
    return [LETTERS[letter] for letter in pattern] if pattern else list(LETTERS.values())


def build_nemotron_experts(c: Settings, kind: str) -> list[Component]:
    """Experts without a gate, in a narrower space where ``moe_latent_size`` is set, and one that every token passes.

    The router and the shared expert read the full width, only routed experts work in the latent one
    (modeling_nemotron_h.py: fc1_latent_proj, fc2_latent_proj).
    """
    shared = plain_mlp(
        "up_proj down_proj",
        bias="mlp_bias",
        ffn=lambda c: c["moe_shared_expert_intermediate_size"] or c.ffn,
        role="shared",
    )
    narrow = c["moe_latent_size"]
    inside = routed_experts(matrices=2, hidden=lambda c: c.hidden if narrow is None else narrow, extra=shared)
    if narrow is None:
        return inside(c, kind)
    bias = bool(c["mlp_bias"])
    latent = linear("fc1_latent_proj", c.hidden, narrow, bias), linear("fc2_latent_proj", narrow, c.hidden, bias)
    return [*inside(c, kind), *latent]


DELTA = {
    "linear_attention": build_delta_net,
    "full_attention": attention(bias="attention_bias", qk_norm="head", gate=True),
}
GRANITE_EXPERTS = routed_experts(
    ffn=lambda c: c.ffn,
    shared=lambda c: c["shared_intermediate_size"],
    shared_block=lambda size: gated_mlp("input_linear output_linear", ffn=size, role="shared"),
)


def build_granite_mlp(c: Settings, kind: str) -> list[Component]:
    """Without experts only the shared one is left."""
    if c.size("experts"):
        return GRANITE_EXPERTS(c, kind)
    return gated_mlp("input_linear output_linear", ffn=lambda c: c["shared_intermediate_size"])(c, kind)


FAMILIES: dict[str, Family] = {
    "mamba": decoder(mamba(), None, norms=1, kinds=repeat_kind("linear_attention")),
    "falcon_mamba": decoder(mamba(), None, norms=1, kinds=repeat_kind("linear_attention")),
    "mamba2": decoder(mamba2(), None, norms=1, kinds=repeat_kind("linear_attention")),
    "rwkv": decoder(
        build_time_mix,
        build_channel_mix,
        norm_arrays=2,
        kinds=repeat_kind("linear_attention"),
        extra=lambda c: norm("pre_ln", c.hidden, 2),
    ),
    "jamba": decoder(
        {"linear_attention": mamba("mamba_", norms=True), "full_attention": attention()},
        gated_mlp(),
        moe=routed_experts(ffn=lambda c: c.ffn),
        moe_layers=mark_jamba_moe_layers,
        kinds=list_jamba_kinds,
    ),
    "bamba": decoder(
        {"linear_attention": mamba2("mamba_"), "full_attention": attention(bias="attention_bias")},
        gated_mlp(bias="mlp_bias"),
        kinds=list_bamba_kinds,
    ),
    "granitemoehybrid": decoder(
        {"linear_attention": mamba2("mamba_"), "full_attention": attention(bias="attention_bias")},
        build_granite_mlp,
        moe=build_granite_mlp,
        moe_layers=lambda c: [c.size("experts") > 0] * c.layers,
        kinds=read_listed_kinds("linear_attention"),
    ),
    "falcon_h1": decoder(
        join_blocks(
            mamba2("mamba_", norm="mamba_rms_norm", inner="mamba_d_ssm", out_bias="projectors_bias"),
            attention(bias="attention_bias"),
        ),
        gated_mlp(bias="mlp_bias"),
        kinds=repeat_kind("hybrid"),
    ),
    "lfm2": decoder(
        {
            "conv": build_short_conv,
            "full_attention": attention("q_proj k_proj v_proj out_proj", qk_norm="head"),
        },
        gated_mlp("w1 w3 w2", ffn=compute_lfm2_width),
        kinds=list_lfm2_kinds,
        head=build_lfm2_head,
    ),
    "lfm2_moe": decoder(
        {
            "conv": build_short_conv,
            "full_attention": attention("q_proj k_proj v_proj out_proj", qk_norm="head"),
        },
        gated_mlp("w1 w3 w2"),
        moe=routed_experts(router="linear"),
        moe_layers=lambda c: [i >= c["num_dense_layers"] for i in range(c.layers)],
        kinds=list_layer_kinds,
        head=build_lfm2_head,
    ),
    "recurrent_gemma": decoder(
        {
            "linear_attention": build_gated_recurrence,
            "sliding_attention": attention(bias="attention_bias", out_bias=True),
        },
        gated_mlp(bias=True, ffn=halve_ffn),
        kinds=list_recurrent_gemma_kinds,
    ),
    "minimax": decoder(
        {"linear_attention": build_lightning_attention, "full_attention": attention()},
        None,
        moe=routed_experts(ffn=lambda c: c.ffn),
        kinds=list_minimax_kinds,
    ),
    "qwen3_next": decoder(
        DELTA,
        gated_mlp(),
        moe=routed_experts(shared=lambda c: c["shared_expert_intermediate_size"], shared_gate=True),
        moe_layers=mark_qwen_moe_layers,
        kinds=alternate_kinds("full_attention_interval", other="linear_attention", default=4),
    ),
    "olmo_hybrid": decoder(
        {
            "linear_attention": build_olmo_delta_net,
            "full_attention": attention(bias="attention_bias", qk_norm="full"),
        },
        gated_mlp(),
        kinds=list_olmo_hybrid_kinds,
    ),
    "nemotron_h": decoder(
        {
            "linear_attention": mamba2("nemotron"),
            "full_attention": attention(),
            "mlp": plain_mlp("up_proj down_proj", bias="mlp_bias"),
            "moe": build_nemotron_experts,
        },
        None,
        norms=1,
        kinds=list_nemotron_kinds,
        moe_layers=lambda c: [kind == "moe" for kind in list_nemotron_kinds(c)],
        depth=lambda c: len(list_nemotron_kinds(c)),
        head=output_layer(tied=False),
    )._replace(refuses=("mamba_n_groups", "mamba_d_conv", "mamba_conv_bias")),
}
