"""Decoders whose layers keep a state of fixed size, alone or beside attention, as Transformers 5.23 builds them."""

from __future__ import annotations

from generator.model.blocks import attention, gated, joined, moe, plain
from generator.model.parts import Item, linear, norm
from generator.model.recurrent import (
    channel_mix,
    delta_net,
    gated_recurrence,
    lightning,
    mamba,
    mamba2,
    olmo_delta_net,
    short_conv,
    time_mix,
)
from generator.model.settings import Settings
from generator.model.sparse import qwen_sparse
from generator.model.stacks import Kinds, Row, alternating, decoder, every, layer_types, output

USUAL_NAMES = {"mamba": "linear_attention", "attention": "full_attention", "recurrent": "linear_attention"}
"""what layer lists of published configs say for the names that Transformers 5 uses"""


def listed(usual: str) -> Kinds:
    """The layers' kinds as the config lists them, all ``usual`` without a list."""

    def kinds(c: Settings) -> list[str]:
        told = c["layer_types"] or c["layers_block_type"]
        return [USUAL_NAMES.get(kind, kind) for kind in told] if told else [usual] * c.layers

    return kinds


def bamba_kinds(c: Settings) -> list[str]:
    chosen = set(c["attn_layer_indices"] or ())
    return ["full_attention" if i in chosen else "linear_attention" for i in range(c.layers)]


def jamba_kinds(c: Settings) -> list[str]:
    period, offset = c["attn_layer_period"], c["attn_layer_offset"]
    return ["full_attention" if i % period == offset else "linear_attention" for i in range(c.layers)]


def jamba_sparse(c: Settings) -> list[bool]:
    period, offset = c["expert_layer_period"], c["expert_layer_offset"]
    return [c.size("experts") > 1 and i % period == offset for i in range(c.layers)]


def olmo_kinds(c: Settings) -> list[str]:
    kinds = alternating(4, other="linear_attention")(c)
    return kinds if "full_attention" in kinds else [*kinds[:-1], "full_attention"]


def lfm2_kinds(c: Settings) -> list[str]:
    told, chosen = c["layer_types"], c["full_attn_idxs"]
    if told:
        return list(told)
    return ["full_attention" if chosen is None or i in chosen else "conv" for i in range(c.layers)]


def lfm2_width(c: Settings) -> int:
    """Two thirds of the configured width, rounded up to a multiple."""
    told = c["block_ff_dim"] or c["intermediate_size"]
    if not c["block_auto_adjust_ff_dim"]:
        return told
    width = int(2 * told / 3)
    if c["block_ffn_dim_multiplier"] is None:
        return width
    step = c["block_multiple_of"]
    return step * -(-int(c["block_ffn_dim_multiplier"] * width) // step)


def lfm2_head(c: Settings) -> list[Item]:
    return output()(c.but(tie_word_embeddings=c["tie_embedding"]) if c.says("tie_embedding") else c)


def minimax_kinds(c: Settings) -> list[str]:
    return list(c["layer_types"] or ()) or ["linear_attention" if i % 2 else "full_attention" for i in range(c.layers)]


def gemma_kinds(c: Settings) -> list[str]:
    pattern = list(c["block_types"])
    return ["linear_attention" if kind == "recurrent" else "sliding_attention" for kind in (pattern * 100)[: c.layers]]


def half(c: Settings) -> int:
    """RecurrentGemma's config tells the width of gate and up together."""
    return c.ffn // 2


LETTERS = {"M": "linear_attention", "E": "moe", "*": "full_attention", "-": "mlp"}


def nemotron_kinds(c: Settings) -> list[str]:
    """The list alone tells how many layers there are: their number is not read."""
    told, pattern = c["layers_block_type"], c["hybrid_override_pattern"]
    if told:
        return [USUAL_NAMES.get(kind, kind) for kind in told]
    return [LETTERS[letter] for letter in pattern] if pattern else list(LETTERS.values())


def nemotron_experts(c: Settings, kind: str) -> list[Item]:
    """Experts without a gate, in a narrower space where the config says so, and one that every token passes."""
    shared = plain(
        "up_proj down_proj",
        bias="mlp_bias",
        ffn=lambda c: c["moe_shared_expert_intermediate_size"] or c.ffn,
        role="shared",
    )
    narrow = c["moe_latent_size"]
    inside = moe(matrices=2, hidden=lambda c: c.hidden if narrow is None else narrow, extra=shared)
    if narrow is None:
        return inside(c, kind)
    bias = bool(c["mlp_bias"])
    latent = linear("fc1_latent_proj", c.hidden, narrow, bias), linear("fc2_latent_proj", narrow, c.hidden, bias)
    return [*inside(c, kind), *latent]


DELTA = {
    "linear_attention": delta_net(True),
    "full_attention": attention(bias="attention_bias", qk_norm="head", gate=True),
}
GRANITE_EXPERTS = moe(
    ffn=lambda c: c.ffn,
    shared=lambda c: c["shared_intermediate_size"],
    shared_block=lambda size: gated("input_linear output_linear", ffn=size, role="shared"),
)


def granite_feed_forward(c: Settings, kind: str) -> list[Item]:
    """Without experts only the shared one is left."""
    if c.size("experts"):
        return GRANITE_EXPERTS(c, kind)
    return gated("input_linear output_linear", ffn=lambda c: c["shared_intermediate_size"])(c, kind)


ROWS: dict[str, Row] = {
    "mamba": decoder(mamba(), None, norms=1, kinds=every("linear_attention")),
    "falcon_mamba": decoder(mamba(), None, norms=1, kinds=every("linear_attention")),
    "mamba2": decoder(mamba2(), None, norms=1, kinds=every("linear_attention")),
    "rwkv": decoder(
        time_mix,
        channel_mix,
        norm_arrays=2,
        kinds=every("linear_attention"),
        extra=lambda c: norm("pre_ln", c.hidden, 2),
    ),
    "jamba": decoder(
        {"linear_attention": mamba("mamba_", norms=True), "full_attention": attention()},
        gated(),
        moe=moe(ffn=lambda c: c.ffn),
        sparse=jamba_sparse,
        kinds=jamba_kinds,
    ),
    "bamba": decoder(
        {"linear_attention": mamba2("mamba_"), "full_attention": attention(bias="attention_bias")},
        gated(bias="mlp_bias"),
        kinds=bamba_kinds,
    ),
    "granitemoehybrid": decoder(
        {"linear_attention": mamba2("mamba_"), "full_attention": attention(bias="attention_bias")},
        granite_feed_forward,
        moe=granite_feed_forward,
        sparse=lambda c: [c.size("experts") > 0] * c.layers,
        kinds=listed("linear_attention"),
    ),
    "falcon_h1": decoder(
        joined(
            mamba2("mamba_", norm="mamba_rms_norm", inner="mamba_d_ssm", out_bias="projectors_bias"),
            attention(bias="attention_bias"),
        ),
        gated(bias="mlp_bias"),
        kinds=every("hybrid"),
    ),
    "lfm2": decoder(
        {
            "conv": short_conv,
            "full_attention": attention("q_proj k_proj v_proj out_proj", qk_norm="head"),
        },
        gated("w1 w3 w2", ffn=lfm2_width),
        kinds=lfm2_kinds,
        head=lfm2_head,
    ),
    "lfm2_moe": decoder(
        {
            "conv": short_conv,
            "full_attention": attention("q_proj k_proj v_proj out_proj", qk_norm="head"),
        },
        gated("w1 w3 w2"),
        moe=moe(router="linear"),
        sparse=lambda c: [i >= c["num_dense_layers"] for i in range(c.layers)],
        kinds=layer_types,
        head=lfm2_head,
    ),
    "recurrent_gemma": decoder(
        {
            "linear_attention": gated_recurrence,
            "sliding_attention": attention(bias="attention_bias", out_bias=True),
        },
        gated(bias=True, ffn=half),
        kinds=gemma_kinds,
    ),
    "minimax": decoder(
        {"linear_attention": lightning, "full_attention": attention()},
        None,
        moe=moe(ffn=lambda c: c.ffn),
        kinds=minimax_kinds,
    ),
    "qwen3_next": decoder(
        DELTA,
        gated(),
        moe=moe(shared=lambda c: c["shared_expert_intermediate_size"], shared_gate=True),
        sparse=qwen_sparse,
        kinds=alternating("full_attention_interval", other="linear_attention", usual=4),
    ),
    "olmo_hybrid": decoder(
        {
            "linear_attention": olmo_delta_net,
            "full_attention": attention(bias="attention_bias", qk_norm="full"),
        },
        gated(),
        kinds=olmo_kinds,
    ),
    "nemotron_h": decoder(
        {
            "linear_attention": mamba2("nemotron"),
            "full_attention": attention(),
            "mlp": plain("up_proj down_proj", bias="mlp_bias"),
            "moe": nemotron_experts,
        },
        None,
        norms=1,
        kinds=nemotron_kinds,
        sparse=lambda c: [kind == "moe" for kind in nemotron_kinds(c)],
        depth=lambda c: len(nemotron_kinds(c)),
        head=output(tied=False),
    )._replace(refuses=("mamba_n_groups", "mamba_d_conv", "mamba_conv_bias")),
}
