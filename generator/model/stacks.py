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


class Row(NamedTuple):
    """A model type: ``body`` is what ``AutoModel`` builds, ``head`` what the model for its task adds.

    ``kind`` as in ``ModelSpec.kind``; ``gated`` whether feed-forwards have a gate; ``layer_kinds`` names each layer's.
    ``text``: key of the nested config that holds the text model's sizes.
    """

    kind: str
    body: Maker
    head: Maker
    layer_kinds: Kinds
    gated: Callable[[Settings], bool] = lambda c: True
    text: str | None = None


def nothing(c: Settings) -> list[Item]:
    return []


def every(kind: str) -> Kinds:
    return lambda c: [kind] * c.layers


def layer_types(c: Settings) -> list[str]:
    """The layers' kinds as the config lists them; without a list all see a window where the config has one."""
    told = c["layer_types"]
    if told:
        return list(told)
    return ["sliding_attention" if c["sliding_window"] else "full_attention"] * c.layers


def alternating(period: int | str, last: str = "full_attention", other: str = "sliding_attention") -> Kinds:
    """Every ``period``-th layer (a number, or the key that tells it) is ``last``, unless the config lists them."""

    def kinds(c: Settings) -> list[str]:
        told = c["layer_types"]
        if told:
            return list(told)
        n = period if isinstance(period, int) else c[period]
        return [last if n and (i + 1) % n == 0 else other for i in range(c.layers)]

    return kinds


def qwen_windows(c: Settings) -> list[str]:
    """Qwen: layers from ``max_window_layers`` on see a window, where ``use_sliding_window`` says so."""
    told = c["layer_types"]
    if told:
        return list(told)
    first = c["max_window_layers"] if c["use_sliding_window"] and c["sliding_window"] else c.layers
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
    made: list[Item] = []
    for (kind, routed), times in Counter(zip(kinds, sparse, strict=True)).items():
        mix = mixer if callable(mixer) else mixer[kind]
        chosen = moe if routed else ffn
        layer = mix(c, kind) + (chosen(c, kind) if chosen else [])
        made += repeated(layer, times)
    return made


def tokens(name: str = "embed_tokens", positions: int | None = None, extra: Maker = nothing) -> Maker:
    """The vocabulary, and learned positions (``positions`` more rows than the config says) where not ``None``."""

    def make(c: Settings) -> list[Item]:
        rows: list[Item] = [embedding(name, c.vocab, c.hidden)]
        if positions is not None:
            rows.append(embedding("positions", c.size("positions") + positions, c.hidden))
        return rows + extra(c)

    return make


def output(bias: bool | str = False) -> Maker:
    """The output layer over the vocabulary, tied to the input embedding where the config says so."""

    def make(c: Settings) -> list[Item]:
        added = c.vocab if c.asks(bias) else 0
        return [Part("lm_head", c.hidden, c.vocab, added, 1, "tied" if c["tie_word_embeddings"] else "head")]

    return make


def decoder(
    mixer: Block | Mapping[str, Block],
    ffn: Block | None,
    *,
    moe: Block | None = None,
    sparse: Callable[[Settings], list[bool]] | None = None,
    kinds: Kinds = layer_types,
    norms: int | Callable[[Settings], int] = 2,
    norm_arrays: int | Callable[[Settings], int] = 1,
    final_norm: bool | str = True,
    embed: Maker = tokens(),
    extra: Maker = nothing,
    head: Maker = output(),
    gated: bool | str = True,
    kind: str = "decoder",
) -> Row:
    """One stack: embeddings, ``norms`` norms and a mixer and a feed-forward a layer, a last norm, an output layer."""

    def body(c: Settings) -> list[Item]:
        of_layers = kinds(c)
        routed = sparse(c) if sparse else [moe is not None] * len(of_layers)
        arrays = norm_arrays if isinstance(norm_arrays, int) else norm_arrays(c)
        a_layer = norms if isinstance(norms, int) else norms(c)
        made = embed(c) + blocks(c, of_layers, routed, mixer, ffn, moe)
        made += norm("norm", c.hidden, arrays * (a_layer * len(of_layers) + c.asks(final_norm)))
        return made + extra(c)

    return Row(kind, body, head, kinds, lambda c: c.asks(gated))
