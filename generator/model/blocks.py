"""The blocks that models are built of. Each maker takes what differs between families and gives a ``Block``.

A ``Block`` makes the items of one layer from a config and the layer's kind (full_attention, sliding_attention, mamba…).
"""

from __future__ import annotations

from collections.abc import Callable

from generator.model.parts import Item, Part, Scores, linear, norm, vector
from generator.model.settings import Settings

Block = Callable[[Settings, str], list[Item]]
Rule = bool | str
Size = Callable[[Settings], int]


def width(c: Settings) -> int:
    return c.hidden


def window_of(c: Settings, kind: str) -> int | None:
    """How many keys a query of such a layer sees at most; ``None``: all of them."""
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
    causal: bool = True,
    hidden: Size = width,
    context: Size | None = None,
    out: Size | None = None,
    extra: Callable[[Settings], list[Item]] | None = None,
) -> Block:
    """Queries, keys, values and output; two names instead of four: one fused projection for the first three.

    ``qk_norm`` (where ``when``): "head" one norm a head size, "heads" one for every head, "full" over all heads of queries and
    of keys. ``gate`` doubles the queries (an output gate). ``context``: width of what keys and values are made from (cross
    attention); ``out``: that of what the output projection takes, where it is not all heads.
    """
    said = names.split()

    def block(c: Settings, kind: str) -> list[Item]:
        h, d = hidden(c), c.head_dim
        query, key = c.heads * d, c.kv_heads * d
        b = c.asks(bias)
        source = context(c) if context else h
        made: list[Item] = []
        if len(said) == 2:
            made.append(linear(said[0], h, query + 2 * key, b))
        else:
            made += [
                linear(said[0], h, query * (2 if gate else 1), b),
                linear(said[1], source, key, b if key_bias is None else c.asks(key_bias)),
                linear(said[2], source, key, b if value_bias is None else c.asks(value_bias)),
            ]
        made.append(linear(said[-1], out(c) if out else query, h, b if out_bias is None else c.asks(out_bias)))
        if qk_norm and c.asks(when):
            sizes = {"head": (d, d), "heads": (query, key), "full": (query, key)}[qk_norm]
            made += [vector("q_norm", sizes[0], norm_arrays), vector("k_norm", sizes[1], norm_arrays)]
        made.append(Scores(1, c.heads, c.kv_heads, d, d, 2 * key, window_of(c, kind), causal and context is None))
        return made + (extra(c) if extra else [])

    return block


def latent_attention(*, query_rank: str = "q_lora_rank") -> Block:
    """DeepSeek's: queries and keys through low ranks. The cache keeps the latent and the rotated part of the key."""

    def block(c: Settings, kind: str) -> list[Item]:
        h, heads, bias = c.hidden, c.heads, bool(c["attention_bias"])
        rope, nope, value = c["qk_rope_head_dim"], c["qk_nope_head_dim"], c["v_head_dim"]
        rank, key_rank = c[query_rank], c["kv_lora_rank"]
        query = heads * (nope + rope)
        if rank is not None:
            made: list[Item] = [
                linear("q_a_proj", h, rank, bias),
                vector("q_a_layernorm", rank),
                linear("q_b_proj", rank, query),
            ]
        else:
            made = [linear("q_proj", h, query)]
        return [
            *made,
            linear("kv_a_proj_with_mqa", h, key_rank + rope, bias),
            vector("kv_a_layernorm", key_rank),
            linear("kv_b_proj", key_rank, heads * (nope + value)),
            linear("o_proj", heads * value, h, bias),
            Scores(1, heads, heads, nope + rope, value, key_rank + rope, window_of(c, kind)),
        ]

    return block


def feed_forward_width(c: Settings) -> int:
    return c.ffn


def gated(
    names: str = "gate_proj up_proj down_proj",
    *,
    bias: Rule = False,
    ffn: Size = feed_forward_width,
    hidden: Size = width,
    role: str = "down",
    extra: Callable[[Settings], list[Item]] | None = None,
) -> Block:
    """Gate, up and down; two names: gate and up in one projection."""
    said = names.split()

    def block(c: Settings, kind: str) -> list[Item]:
        h, f, b = hidden(c), ffn(c), c.asks(bias)
        if len(said) == 2:
            up: list[Item] = [linear(said[0], h, 2 * f, b, role="gate")]
        else:
            up = [linear(said[0], h, f, b, role="gate"), linear(said[1], h, f, b)]
        return [*up, linear(said[-1], f, h, b, role=role), *(extra(c) if extra else [])]

    return block


def plain(
    names: str = "fc1 fc2",
    *,
    bias: Rule = True,
    ffn: Size = feed_forward_width,
    hidden: Size = width,
    role: str = "down",
    extra: Callable[[Settings], list[Item]] | None = None,
) -> Block:
    """Up and down."""
    up, down = names.split()

    def block(c: Settings, kind: str) -> list[Item]:
        h, f, b = hidden(c), ffn(c), c.asks(bias)
        return [linear(up, h, f, b), linear(down, f, h, b, role=role), *(extra(c) if extra else [])]

    return block


def expert_width(c: Settings) -> int:
    return c.size("expert_ffn", c.ffn)


def moe(
    *,
    ffn: Size = expert_width,
    matrices: int = 3,
    bias: bool = False,
    router: str = "router",
    router_bias: bool = False,
    shared: Size | None = None,
    shared_block: Callable[[Size], Block] = lambda size: gated(ffn=size, role="shared"),
    shared_gate: bool = False,
    correction: bool = False,
    hidden: Size = width,
    extra: Block | None = None,
    experts: Size = lambda c: c.need("experts"),
    active: Size = lambda c: c.size("experts_per_token"),
) -> Block:
    """Routed experts in fused parameters, and the experts that every token passes.

    ``router`` is the kind of its matrix: router (a parameter) or linear (a module). ``correction``: a learned bias an expert.
    """

    def block(c: Settings, kind: str) -> list[Item]:
        h, f, n = hidden(c), ffn(c), experts(c)
        share = min(active(c) or 0, n) / n
        first = matrices - 1
        made: list[Item] = [
            Part("gate", c.hidden, n, n if router_bias else 0, 1, router),
            Part(
                "experts.gate_up_proj" if first == 2 else "experts.up_proj",
                h,
                first * f,
                first * f * bias,
                n,
                "expert",
                share,
                "gate" if first == 2 else "",
            ),
            Part("experts.down_proj", f, h, h * bias, n, "expert", share, "down"),
        ]
        if correction:
            made.append(vector("e_score_correction_bias", n))
        size = shared(c) if shared else 0
        if size:
            made += shared_block(lambda _: size)(c, kind)
        if shared_gate:
            made.append(linear("shared_expert_gate", h, 1))
        return made + (extra(c, kind) if extra else [])

    return block


def joined(*blocks: Block) -> Block:
    return lambda c, kind: [item for block in blocks for item in block(c, kind)]


def norms(count: int, arrays: int = 1) -> Callable[[Settings], list[Item]]:
    """``count`` norms of the model's width."""
    return lambda c: norm("norm", c.hidden, count * arrays)
