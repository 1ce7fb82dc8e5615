"""Stacks of blocks and the models made of them: each maker gives a ``Row`` of the table of families."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from generator.model.blocks import Block
from generator.model.parts import Item, Part, embedding, norm, repeated
from generator.model.settings import Settings

Maker = Callable[[Settings], list[Item]]
Kinds = Callable[[Settings], list[str]]
Sparse = Callable[[Settings], list[bool]]
Number = int | Callable[[Settings], int]


def nothing(c: Settings) -> list[Item]:
    return []


def layers_of(c: Settings) -> int:
    return c.layers


def hidden_of(c: Settings) -> int:
    return c.hidden


class Row(NamedTuple):
    """A model type: ``body`` is what ``AutoModel`` builds, ``head`` what the model for its task adds.

    ``kind`` as in ``ModelSpec.kind``; ``kinds`` names each layer's mixer, ``sparse`` tells which layers have experts.
    ``text``: key of the nested config that holds the text model's sizes.
    """

    kind: str
    body: Maker
    head: Maker
    kinds: Kinds
    sparse: Sparse = lambda c: []
    depth: Callable[[Settings], int] = layers_of
    width: Callable[[Settings], int] = hidden_of
    text: str | None = None
    refuses: tuple[str, ...] = ()
    """keys that the row does not understand: where one says something, Transformers counts"""
    lifted: Callable[[Mapping], Mapping] = lambda config: config
    """the config as the class rearranges it"""


def every(kind: str = "full_attention") -> Kinds:
    return lambda c: [kind] * c.layers


def layer_types(c: Settings) -> list[str]:
    """The layers' kinds as the config lists them; without a list all see a window where the config has one."""
    told = c["layer_types"]
    if told:
        return list(told)
    return ["sliding_attention" if c["sliding_window"] else "full_attention"] * c.layers


def alternating(
    period: int | str, last: str = "full_attention", other: str = "sliding_attention", usual: int = 0
) -> Kinds:
    """Every ``period``-th layer (a number, or the key that tells it, else ``usual``) is ``last``, unless the config lists them."""

    def kinds(c: Settings) -> list[str]:
        told = c["layer_types"]
        if told:
            return list(told)
        n = period if isinstance(period, int) else c[period] or usual
        return [last if n and (i + 1) % n == 0 else other for i in range(c.layers)]

    return kinds


def qwen_windows(c: Settings) -> list[str]:
    """Qwen: layers from ``max_window_layers`` on see a window, where ``use_sliding_window`` says so."""
    told = c["layer_types"]
    if told:
        return list(told)
    first = (c["max_window_layers"] or 0) if c["use_sliding_window"] and c["sliding_window"] else c.layers
    return ["full_attention" if i < first else "sliding_attention" for i in range(c.layers)]


def blocks(
    c: Settings,
    kinds: list[str],
    sparse: list[bool],
    mixer: Block | Mapping[str, Block],
    ffn: Block | None,
    moe: Block | None,
) -> list[Item]:
    """All layers: equal ones are made once."""
    if len(kinds) != len(sparse):
        raise ValueError(f"the config lists the kinds of {len(kinds)} layers, and has {len(sparse)}")
    made: list[Item] = []
    for (kind, routed), times in Counter(zip(kinds, sparse, strict=True)).items():
        mix = mixer[kind] if isinstance(mixer, Mapping) else mixer
        chosen = moe if routed else ffn
        layer = mix(c, kind) + (chosen(c, kind) if chosen else [])
        made += repeated(layer, times)
    return made


def number(of: Number, c: Settings) -> int:
    return of if isinstance(of, int) else of(c)


def tokens(name: str = "embed_tokens", positions: int | None = None, extra: Maker = nothing) -> Maker:
    """The vocabulary, and learned positions (``positions`` more rows than the config says) where not ``None``."""

    def make(c: Settings) -> list[Item]:
        rows: list[Item] = [embedding(name, c.vocab, c.hidden)]
        if positions is not None:
            rows.append(embedding("positions", c.size("positions") + positions, c.hidden))
        return rows + extra(c)

    return make


def output(bias: bool | str = False, tied: bool | str = "tie_word_embeddings") -> Maker:
    """The output layer over the vocabulary, tied to the input embedding where the config says so."""

    def make(c: Settings) -> list[Item]:
        added = c.vocab if c.asks(bias) else 0
        return [Part("lm_head", c.hidden, c.vocab, added, 1, "tied" if c.asks(tied) else "head")]

    return make


def once(*makers: Maker) -> Maker:
    """All of these, one after the other."""
    return lambda c: [item for make in makers for item in make(c)]


TOKENS, HEAD = tokens(), output()


def decoder(
    mixer: Block | Mapping[str, Block],
    ffn: Block | None,
    *,
    moe: Block | None = None,
    sparse: Sparse | None = None,
    kinds: Kinds = layer_types,
    norms: Number = 2,
    norm_arrays: Number = 1,
    final_norm: bool | str | Callable[[Settings], bool] = True,
    embed: Maker = TOKENS,
    extra: Maker = nothing,
    head: Maker = HEAD,
    kind: str = "decoder",
    depth: Callable[[Settings], int] = layers_of,
) -> Row:
    """One stack: embeddings, ``norms`` norms and a mixer and a feed-forward a layer, a last norm, an output layer."""
    routed = sparse or (lambda c: [moe is not None] * c.layers)

    def body(c: Settings) -> list[Item]:
        made = embed(c) + blocks(c, kinds(c), routed(c), mixer, ffn, moe)
        arrays = number(norm_arrays, c)
        last = final_norm(c) if callable(final_norm) else c.asks(final_norm)
        made += norm("norm", c.hidden, arrays * (number(norms, c) * depth(c) + bool(last)))
        return made + extra(c)

    return Row(kind, body, head, kinds, routed, depth)
