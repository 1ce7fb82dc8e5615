"""Blocks whose state has a fixed size: selective state spaces, linear attention, gated recurrences and short convolutions."""

from __future__ import annotations

from generator.model.blocks import Block
from generator.model.parts import Item, Part, State, conv, linear, vector
from generator.model.settings import Settings


def mamba(prefix: str = "", *, norms: bool = False) -> Block:
    """Mamba's first mixer. Jamba's keys begin with ``mamba_`` and it normalizes dt, B and C."""

    def block(c: Settings, kind: str) -> list[Item]:
        h = c.hidden
        inner = int((c["mamba_expand"] if prefix else c["expand"]) * h)
        inner = inner if prefix or c["intermediate_size"] is None else c["intermediate_size"]
        state = c["mamba_d_state"] if prefix else c["state_size"]
        kernel = c["mamba_d_conv"] if prefix else c["conv_kernel"]
        rank = c["mamba_dt_rank"] if prefix else c["time_step_rank"]
        rank = -(-h // 16) if rank in (None, "auto") else rank
        bias = bool(c["mamba_proj_bias" if prefix else "use_bias"])
        made: list[Item] = [
            linear("in_proj", h, 2 * inner, bias),
            linear("x_proj", inner, rank + 2 * state),
            linear("dt_proj", rank, inner, True),
            linear("out_proj", inner, h, bias),
            conv("conv1d", kernel, inner, bool(c["mamba_conv_bias" if prefix else "use_conv_bias"])),
            vector("A_log", inner * state),
            vector("D", inner),
            State("conv", inner * kernel),
            State("ssm", inner * state),
        ]
        return made + ([vector("dt_b_c_norms", rank + 2 * state)] if norms else [])

    return block


MAMBA2_KEYS = {
    "": ("num_heads", "head_dim", "n_groups", "state_size", "conv_kernel", "use_conv_bias", "use_bias"),
    "mamba_": (
        "mamba_n_heads",
        "mamba_d_head",
        "mamba_n_groups",
        "mamba_d_state",
        "mamba_d_conv",
        "mamba_conv_bias",
        "mamba_proj_bias",
    ),
    "nemotron": (
        "mamba_num_heads",
        "mamba_head_dim",
        "n_groups",
        "ssm_state_size",
        "conv_kernel",
        "use_conv_bias",
        "use_bias",
    ),
}


def mamba2(keys: str = "", *, norm: bool | str = True, inner: str | None = None, out_bias: str | None = None) -> Block:
    """Mamba's second mixer; ``inner``: the key of its width, where that is not heads × head size (or 2 × hidden)."""

    def block(c: Settings, kind: str) -> list[Item]:
        heads, head, groups, state, kernel, conv_bias, bias = (c[key] for key in MAMBA2_KEYS[keys])
        h = c.hidden
        wide = expanded(c, keys, inner, heads, head)
        mixed = wide + 2 * groups * state
        made: list[Item] = [
            linear("in_proj", h, wide + mixed + heads, bool(bias)),
            linear("out_proj", wide, h, bool(c[out_bias] if out_bias else bias)),
            conv("conv1d", kernel, mixed, bool(conv_bias)),
            vector("dt_bias", heads, 3),  # and A_log and D
            State("conv", mixed * kernel),
            State("ssm", wide * state),
        ]
        return made + ([vector("norm", wide)] if c.asks(norm) else [])

    return block


def expanded(c: Settings, keys: str, inner: str | None, heads: int, head: int) -> int:
    if inner and c[inner] is not None:
        return c[inner]
    if keys == "nemotron":
        return heads * head
    return int(c["expand" if keys == "" else "mamba_expand"] * c.hidden)


def delta_net(fused: bool) -> Block:
    """Qwen3-Next's gated delta rule; ``fused``: queries, keys, values and gate in one projection, as are the two rates."""

    def block(c: Settings, kind: str) -> list[Item]:
        h, heads = c.hidden, c["linear_num_value_heads"]
        key, value = c["linear_num_key_heads"] * c["linear_key_head_dim"], heads * c["linear_value_head_dim"]
        kernel = c["linear_conv_kernel_dim"]
        if fused:
            made: list[Item] = [
                linear("in_proj_qkvz", h, 2 * key + 2 * value),
                linear("in_proj_ba", h, 2 * heads),
            ]
        else:
            made = [
                linear("in_proj_qkv", h, 2 * key + value),
                linear("in_proj_z", h, value),
                linear("in_proj_b", h, heads),
                linear("in_proj_a", h, heads),
            ]
        return [
            *made,
            linear("out_proj", value, h),
            conv("conv1d", kernel, 2 * key + value),
            vector("dt_bias", heads, 2),  # and A_log
            vector("norm", c["linear_value_head_dim"]),
            State("conv", (2 * key + value) * kernel),
            State("recurrent", heads * c["linear_key_head_dim"] * c["linear_value_head_dim"]),
        ]

    return block


def olmo_delta_net(c: Settings, kind: str) -> list[Item]:
    """OLMo Hybrid's: the same rule with every projection apart."""
    h, keys = c.hidden, c["linear_num_key_heads"] or c.heads
    values = c["linear_num_value_heads"] or c.heads
    key_dim = c["linear_key_head_dim"] or int(0.75 * h / keys)
    value_dim = c["linear_value_head_dim"] or 2 * key_dim
    key, value, kernel = keys * key_dim, values * value_dim, c["linear_conv_kernel_dim"]
    return [
        linear("q_proj", h, key),
        linear("k_proj", h, key),
        linear("v_proj", h, value),
        linear("a_proj", h, values),
        linear("b_proj", h, values),
        linear("g_proj", h, value),
        linear("o_proj", value, h),
        conv("conv1d", kernel, 2 * key + value),
        vector("dt_bias", values, 2),  # and A_log
        vector("o_norm", value_dim),
        State("conv", (2 * key + value) * kernel),
        State("recurrent", values * key_dim * value_dim),
    ]


def lightning(c: Settings, kind: str) -> list[Item]:
    """MiniMax's linear attention."""
    h, wide = c.hidden, c.heads * c.head_dim
    return [
        linear("qkv_proj", h, 3 * wide),
        linear("out_proj", wide, h),
        linear("output_gate", h, wide),
        vector("norm", wide),
        State("recurrent", wide * c.head_dim),
    ]


def short_conv(c: Settings, kind: str) -> list[Item]:
    """LFM2's gated convolution."""
    h, bias = c.hidden, bool(c["conv_bias"])
    return [
        linear("in_proj", h, 3 * h, bias),
        linear("out_proj", h, h, bias),
        conv("conv", c["conv_L_cache"], h, bias),
        State("conv", h * c["conv_L_cache"]),
    ]


def gated_recurrence(c: Settings, kind: str) -> list[Item]:
    """RecurrentGemma's RG-LRU: gates are block-diagonal, one block a head."""
    h, wide, heads = c.hidden, c["lru_width"] or c.hidden, c.heads
    gate = Part("recurrent_gate_weight", wide // heads, wide // heads, wide // heads, 2 * heads, "router")
    return [
        linear("linear_x", h, wide, True),
        linear("linear_y", h, wide, True),
        linear("linear_out", wide, h, True),
        conv("conv_1d", c["conv1d_width"], wide, True),
        gate,
        vector("recurrent_param", wide),
        State("conv", wide * (c["conv1d_width"] - 1)),
        State("recurrent", wide),
    ]


def time_mix(c: Settings, kind: str) -> list[Item]:
    """RWKV's attention."""
    h, wide = c.hidden, c.hidden if c["attention_hidden_size"] is None else c["attention_hidden_size"]
    return [
        linear("key", h, wide),
        linear("value", h, wide),
        linear("receptance", h, wide),
        linear("output", wide, h),
        vector("time_decay", wide, 2),
        vector("time_mix", h, 3),
        State("recurrent", 3 * wide + 2 * h),
    ]


def channel_mix(c: Settings, kind: str) -> list[Item]:
    """RWKV's feed-forward."""
    h, f = c.hidden, c.ffn
    return [
        linear("key", h, f),
        linear("receptance", h, h),
        linear("value", f, h),
        vector("time_mix", h, 2),
    ]
