"""Blocks whose state has a fixed size: selective state spaces, linear attention, gated recurrences and short
convolutions."""

from __future__ import annotations

from generator.model.blocks import Block
from generator.model.components import Component, Mixer, State, Weights, conv, linear, vector
from generator.model.settings import Settings


def mamba(prefix: str = "", *, norms: bool = False) -> Block:
    """Mamba's first mixer (modeling_mamba.py: MambaMixer). Jamba's keys begin with ``mamba_`` and it normalizes dt, B
    and C.

    The states are those of the cache: the last ``kernel`` inputs of each channel, and the state space (cache_utils.py).
    """

    def block(c: Settings, kind: str) -> list[Component]:
        h = c.hidden
        inner = int((c["mamba_expand"] if prefix else c["expand"]) * h)
        inner = inner if prefix or c["intermediate_size"] is None else c["intermediate_size"]
        state = c["mamba_d_state"] if prefix else c["state_size"]
        kernel = c["mamba_d_conv"] if prefix else c["conv_kernel"]
        rank = c["mamba_dt_rank"] if prefix else c["time_step_rank"]
        rank = -(-h // 16) if rank in (None, "auto") else rank  # rounded up (configuration_mamba.py: time_step_rank)
        bias = bool(c["mamba_proj_bias" if prefix else "use_bias"])
        components: list[Component] = [
            linear("in_proj", h, 2 * inner, bias),  # the input and its gate
            linear(
                "x_proj", inner, rank + 2 * state
            ),  # dt at a low rank, B and C: what makes the state space selective
            linear("dt_proj", rank, inner, True),
            linear("out_proj", inner, h, bias),
            conv("conv1d", kernel, inner, bool(c["mamba_conv_bias" if prefix else "use_conv_bias"])),
            vector("A_log", inner * state),
            vector("D", inner),
            State("conv", inner * kernel),
            State("ssm", inner * state),
            Mixer("mamba", inner, keys=state, state=state, rank=rank),
        ]
        return components + ([vector("dt_b_c_norms", rank + 2 * state)] if norms else [])

    return block


MAMBA2_CHUNK = 256
"""tokens, where the config says null (configuration_mamba2.py and its like)"""
DELTA_CHUNK = 64
"""tokens (modeling_qwen3_next.py: torch_chunk_gated_delta_rule)"""
LIGHTNING_CHUNK = 256
"""tokens, where the config says null (configuration_minimax.py: block_size)"""
MAMBA2_KEYS = {
    "": ("num_heads", "head_dim", "n_groups", "state_size", "conv_kernel", "use_conv_bias", "use_bias", "chunk_size"),
    "mamba_": (
        "mamba_n_heads",
        "mamba_d_head",
        "mamba_n_groups",
        "mamba_d_state",
        "mamba_d_conv",
        "mamba_conv_bias",
        "mamba_proj_bias",
        "mamba_chunk_size",
    ),
    "nemotron": (
        "mamba_num_heads",
        "mamba_head_dim",
        "n_groups",
        "ssm_state_size",
        "conv_kernel",
        "use_conv_bias",
        "use_bias",
        "chunk_size",
    ),
}


def mamba2(keys: str = "", *, norm: bool | str = True, inner: str | None = None, out_bias: str | None = None) -> Block:
    """Mamba's second mixer (modeling_mamba2.py: Mamba2Mixer); ``inner``: the key of its width, where that is not
    heads × head size (or 2 × hidden)."""

    def block(c: Settings, kind: str) -> list[Component]:
        heads, head, groups, state, kernel, conv_bias, bias, chunk = (c[key] for key in MAMBA2_KEYS[keys])
        h = c.hidden
        wide = compute_mamba2_width(c, keys, inner, heads, head)
        mixed = wide + 2 * groups * state  # input, B and C pass the convolution together (conv_dim)
        components: list[Component] = [
            linear("in_proj", h, wide + mixed + heads, bool(bias)),  # the gate, those three, and one dt per head
            linear("out_proj", wide, h, bool(c[out_bias] if out_bias else bias)),
            conv("conv1d", kernel, mixed, bool(conv_bias)),
            vector("dt_bias", heads, 3),  # and A_log and D
            State("conv", mixed * kernel),
            State("ssm", wide * state),
        ]
        normed = c.holds(norm)
        kind = "mamba2" if normed else "mamba2-without-norm"
        components.append(Mixer(kind, wide, groups * state, heads, state, chunk or MAMBA2_CHUNK))
        return components + ([vector("norm", wide)] if normed else [])

    return block


def compute_mamba2_width(c: Settings, keys: str, inner: str | None, heads: int, head: int) -> int:
    if inner and c[inner] is not None:
        return c[inner]
    if keys == "nemotron":  # whatever its expand says (modeling_nemotron_h.py: intermediate_size)
        return heads * head
    return int(c["expand" if keys == "" else "mamba_expand"] * c.hidden)


def build_delta_net(c: Settings, kind: str) -> list[Component]:
    """Qwen3-Next's gated delta rule (modeling_qwen3_next.py: Qwen3NextGatedDeltaNet)."""
    h, heads = c.hidden, c["linear_num_value_heads"]
    key, value = c["linear_num_key_heads"] * c["linear_key_head_dim"], heads * c["linear_value_head_dim"]
    kernel = c["linear_conv_kernel_dim"]
    return [
        linear("in_proj_qkvz", h, 2 * key + 2 * value),  # queries, keys, values and the output's gate
        linear("in_proj_ba", h, 2 * heads),  # a head's rate of writing and of forgetting
        linear("out_proj", value, h),
        conv("conv1d", kernel, 2 * key + value),  # depthwise, over queries, keys and values
        vector("dt_bias", heads, 2),  # and A_log
        vector("norm", c["linear_value_head_dim"]),
        State("conv", (2 * key + value) * kernel),
        # a matrix of keys by values for each value head, which keys are repeated for
        State("recurrent", heads * c["linear_key_head_dim"] * c["linear_value_head_dim"]),
        Mixer("gated-delta", value, key, heads, c["linear_key_head_dim"], DELTA_CHUNK),
    ]


def build_olmo_delta_net(c: Settings, kind: str) -> list[Component]:
    """OLMo Hybrid's: the same rule with every projection apart; sizes by default as configuration_olmo_hybrid.py
    derives them."""
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
        Mixer("gated-delta", value, key, values, key_dim, DELTA_CHUNK),
    ]


def build_lightning_attention(c: Settings, kind: str) -> list[Component]:
    """MiniMax's linear attention (modeling_minimax.py: MiniMaxLightningAttention): a key-by-value matrix per head is
    kept."""
    h, wide = c.hidden, c.heads * c.head_dim
    return [
        linear("qkv_proj", h, 3 * wide),
        linear("out_proj", wide, h),
        linear("output_gate", h, wide),
        vector("norm", wide),
        State("recurrent", wide * c.head_dim),
        Mixer("lightning", wide, wide, c.heads, c.head_dim, c["block_size"] or LIGHTNING_CHUNK),
    ]


def build_short_conv(c: Settings, kind: str) -> list[Component]:
    """LFM2's convolution between two gates, hence three times the width (modeling_lfm2.py: Lfm2ShortConv)."""
    h, bias = c.hidden, bool(c["conv_bias"])
    return [
        linear("in_proj", h, 3 * h, bias),
        linear("out_proj", h, h, bias),
        conv("conv", c["conv_L_cache"], h, bias),
        State("conv", h * c["conv_L_cache"]),
        Mixer("short-convolution", h),
    ]


def build_gated_recurrence(c: Settings, kind: str) -> list[Component]:
    """RecurrentGemma's RG-LRU: gates are block-diagonal, one block a head."""
    h, wide, heads = c.hidden, c["lru_width"] or c.hidden, c.heads
    # input gate and recurrent gate, each a stack of heads' blocks (RecurrentGemmaRglru): multiplied, but no Linear
    # module
    gate = Weights("recurrent_gate_weight", wide // heads, wide // heads, wide // heads, 2 * heads, "router")
    return [
        linear("linear_x", h, wide, True),
        linear("linear_y", h, wide, True),
        linear("linear_out", wide, h, True),
        conv("conv_1d", c["conv1d_width"], wide, True),
        gate,
        vector("recurrent_param", wide),
        State("conv", wide * (c["conv1d_width"] - 1)),
        State("recurrent", wide),
        Mixer("gated-recurrence", wide),
    ]


def build_time_mix(c: Settings, kind: str) -> list[Component]:
    """RWKV's attention (modeling_rwkv.py: RwkvSelfAttention)."""
    h, wide = c.hidden, c.hidden if c["attention_hidden_size"] is None else c["attention_hidden_size"]
    return [
        linear("key", h, wide),
        linear("value", h, wide),
        linear("receptance", h, wide),
        linear("output", wide, h),
        vector("time_decay", wide, 2),  # and time_first
        vector("time_mix", h, 3),
        # numerator, denominator and their largest exponent; the last inputs of this and of the feed-forward
        # (RwkvModel.forward)
        State("recurrent", 3 * wide + 2 * h),
    ]


def build_channel_mix(c: Settings, kind: str) -> list[Component]:
    """RWKV's feed-forward."""
    h, f = c.hidden, c.ffn
    return [
        linear("key", h, f),
        linear("receptance", h, h),
        linear("value", f, h),
        vector("time_mix", h, 2),
    ]
