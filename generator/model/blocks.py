"""Attention and feed-forward blocks. Each function takes what differs between families and returns a ``Block``.

A ``Block`` builds the components of one layer from a config and the layer's kind (full_attention, sliding_attention…).
"""

from __future__ import annotations

from collections.abc import Callable

from generator.model.components import Component, Mixer, Scores, Weights, linear, norm, vector
from generator.model.settings import Settings

Block = Callable[[Settings, str], list[Component]]
Rule = bool | str
Size = Callable[[Settings], int]


def read_hidden(c: Settings) -> int:
    return c.hidden


def find_window(c: Settings, kind: str) -> int | None:
    """How many keys a query of such a layer sees at most, in tokens; ``None``: all of them."""
    if "sliding" in kind or kind == "local":
        return c["sliding_window"] or c["attention_window_size"] or c["window_size"] or c["local_attention"]
    return c["attention_chunk_size"] if kind == "chunked_attention" else None


def attention(
    names: str = "q_proj k_proj v_proj o_proj",
    *,
    bias: Rule = False,
    out_bias: Rule | None = None,
    key_bias: Rule | None = None,
    value_bias: Rule | None = None,
    qk_norm: str = "",
    norm_arrays: int = 1,
    when: Rule = True,
    gate: bool = False,
    context: Size | None = None,
    out: Size | None = None,
    extra: Callable[[Settings], list[Component]] | None = None,
) -> Block:
    """Queries, keys, values and output; two names instead of four: one fused projection for the first three.

    ``qk_norm`` (where ``when``): "head" one norm of a head's size, "heads" one for every head, "full" over all heads of
    queries and of keys. ``gate`` doubles the queries (an output gate). ``context``: width of what keys and values are
    made from (cross attention); ``out``: that of what the output projection takes, where it is not all heads.
    """
    projections = names.split()

    def block(c: Settings, kind: str) -> list[Component]:
        h, d = c.hidden, c.head_dim
        query, key = c.heads * d, c.kv_heads * d
        b = c.holds(bias)
        source = context(c) if context else h
        components: list[Component] = []
        if len(projections) == 2:
            components.append(linear(projections[0], h, query + 2 * key, b))
        else:
            # gate: Qwen3-Next's q_proj also makes a gate of the heads' output (modeling_qwen3_next.py: head_dim * 2)
            components += [
                linear(projections[0], h, query * (2 if gate else 1), b),
                linear(projections[1], source, key, b if key_bias is None else c.holds(key_bias)),
                linear(projections[2], source, key, b if value_bias is None else c.holds(value_bias)),
            ]
        components.append(
            linear(projections[-1], out(c) if out else query, h, b if out_bias is None else c.holds(out_bias))
        )
        if qk_norm and c.holds(when):
            # head: one norm that all heads share (Qwen3, Gemma 3); heads, full: a weight for each element of every head
            # (modeling_cohere.py: hidden_size=(heads, head_dim); modeling_olmo2.py)
            sizes = {"head": (d, d), "heads": (query, key), "full": (query, key)}[qk_norm]
            components += [vector("q_norm", sizes[0], norm_arrays), vector("k_norm", sizes[1], norm_arrays)]
        window = find_window(c, kind)
        components.append(Scores(1, c.heads, c.kv_heads, d, d, 2 * key, window))
        return components + (extra(c) if extra else [])

    return block


def build_latent_attention(c: Settings, kind: str) -> list[Component]:
    """DeepSeek's multi-head latent attention: queries, keys and values through low ranks (modeling_deepseek_v3.py)."""
    h, heads, bias = c.hidden, c.heads, bool(c["attention_bias"])
    rope, nope, value = c["qk_rope_head_dim"], c["qk_nope_head_dim"], c["v_head_dim"]
    rank, key_rank = c["q_lora_rank"], c["kv_lora_rank"]
    query = heads * (nope + rope)
    if rank is not None:
        # the second projection never has a bias: attention_bias is of what reads the hidden state and of the output
        queries: list[Component] = [
            linear("q_a_proj", h, rank, bias),
            vector("q_a_layernorm", rank),
            linear("q_b_proj", rank, query),
        ]
    else:
        queries = [linear("q_proj", h, query)]
    return [
        *queries,
        # one projection for the latent of all heads and the one rotated key that they share: multi-query
        linear("kv_a_proj_with_mqa", h, key_rank + rope, bias),
        vector("kv_a_layernorm", key_rank),
        linear("kv_b_proj", key_rank, heads * (nope + value)),
        linear("o_proj", heads * value, h, bias),
        # the cache is written before kv_b_proj expands it (past_key_values.update(kv_nope, k_rot)): no heads
        Scores(1, heads, heads, nope + rope, value, key_rank + rope, find_window(c, kind)),
        Mixer("latent", heads * value, query, heads, nope, rank=key_rank + (rank or 0)),
    ]


def read_ffn(c: Settings) -> int:
    return c.ffn


def gated_mlp(
    names: str = "gate_proj up_proj down_proj",
    *,
    bias: Rule = False,
    ffn: Size = read_ffn,
    role: str = "down",
    extra: Callable[[Settings], list[Component]] | None = None,
) -> Block:
    """Gate, up and down (SwiGLU and its like); two names instead of three: gate and up in one projection."""
    projections = names.split()

    def block(c: Settings, kind: str) -> list[Component]:
        h, f, b = c.hidden, ffn(c), c.holds(bias)
        if len(projections) == 2:
            up: list[Component] = [linear(projections[0], h, 2 * f, b, role="gate")]
        else:
            up = [linear(projections[0], h, f, b, role="gate"), linear(projections[1], h, f, b)]
        return [*up, linear(projections[-1], f, h, b, role=role), *(extra(c) if extra else [])]

    return block


def plain_mlp(
    names: str = "fc1 fc2",
    *,
    bias: Rule = True,
    ffn: Size = read_ffn,
    role: str = "down",
    extra: Callable[[Settings], list[Component]] | None = None,
) -> Block:
    """Up and down, without a gate."""
    up, down = names.split()

    def block(c: Settings, kind: str) -> list[Component]:
        h, f, b = c.hidden, ffn(c), c.holds(bias)
        return [linear(up, h, f, b), linear(down, f, h, b, role=role), *(extra(c) if extra else [])]

    return block


def read_expert_ffn(c: Settings) -> int:
    return c.size("expert_ffn", c.ffn)


def routed_experts(
    *,
    ffn: Size = read_expert_ffn,
    matrices: int = 3,
    bias: bool = False,
    router: str = "router",
    router_bias: bool = False,
    shared: Size | None = None,
    shared_block: Callable[[Size], Block] = lambda size: gated_mlp(ffn=size, role="shared"),
    shared_gate: bool = False,
    correction: bool = False,
    hidden: Size = read_hidden,
    extra: Block | None = None,
) -> Block:
    """Routed experts in fused parameters, and the experts that every token passes.

    ``matrices``: 3 with a gate, 2 without. ``router`` is the kind of its matrix: router (a parameter) or linear (a
    module). ``correction``: a learned bias per expert. DeepSeek's e_score_correction_bias is no parameter but a buffer
    (modeling_deepseek_v3.py: ``DeepseekV3TopkRouter``), so only ERNIE has one.
    """

    def block(c: Settings, kind: str) -> list[Component]:
        h, f, n = hidden(c), ffn(c), c.require("experts")
        share = min(c.size("experts_per_token") or 0, n) / n
        first = matrices - 1  # of them read the hidden state and are stored side by side
        # Transformers 5 keeps all experts of a layer in two 3-d parameters (modeling_mixtral.py: MixtralExperts), so
        # they are no Linear modules: quantizers and LoRA treat them apart
        components: list[Component] = [
            Weights("gate", c.hidden, n, n if router_bias else 0, 1, router),
            Weights(
                "experts.gate_up_proj" if first == 2 else "experts.up_proj",
                h,
                first * f,
                first * f * bias,
                n,
                "expert",
                share,
                "gate" if first == 2 else "",
            ),
            Weights("experts.down_proj", f, h, h * bias, n, "expert", share, "down"),
        ]
        if correction:
            components.append(vector("e_score_correction_bias", n))
        size = shared(c) if shared else 0
        if size:
            components += shared_block(lambda _: size)(c, kind)
        if shared_gate:
            components.append(linear("shared_expert_gate", h, 1))
        return components + (extra(c, kind) if extra else [])

    return block


def join_blocks(*blocks: Block) -> Block:
    """Several blocks that run side by side in one layer."""
    return lambda c, kind: [component for block in blocks for component in block(c, kind)]


def hidden_norms(count: int, arrays: int = 1) -> Callable[[Settings], list[Component]]:
    """``count`` norms of the model's width."""
    return lambda c: norm("norm", c.hidden, count * arrays)
