"""Stacks of blocks and the models made of them: what the tables of families are written with.

A ``Builder`` makes components from a config; ``decoder`` joins embeddings, blocks, norms and an output layer to a
``Family``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from generator.model.blocks import Block, read_hidden
from generator.model.components import Component, Weights, embedding, norm, repeat_block
from generator.model.settings import Settings

Builder = Callable[[Settings], list[Component]]
LayerKinds = Callable[[Settings], list[str]]
MoeLayers = Callable[[Settings], list[bool]]
Count = int | Callable[[Settings], int]


def build_nothing(c: Settings) -> list[Component]:
    return []


def read_layers(c: Settings) -> int:
    return c.layers


class Family(NamedTuple):
    """A model type: ``body`` is what ``AutoModel`` builds, ``head`` what the model for its task adds.

    ``kind`` as in ``ModelSpec.kind``; ``kinds`` names each layer's mixer, ``moe_layers`` tells which layers have
    experts. ``text``: key of the nested config that holds the text model's sizes.
    """

    kind: str
    body: Builder
    head: Builder
    kinds: LayerKinds
    moe_layers: MoeLayers = lambda c: []
    depth: Callable[[Settings], int] = read_layers
    width: Callable[[Settings], int] = read_hidden
    text: str | None = None
    refuses: tuple[str, ...] = ()
    """keys that the row does not understand: where one holds something, Transformers counts"""
    rearrange: Callable[[Mapping], Mapping] = lambda config: config
    """the config.json as the config class rearranges it"""


# ---- which layers are of which kind


def repeat_kind(kind: str = "full_attention") -> LayerKinds:
    """All layers are of one kind."""
    return lambda c: [kind] * c.layers


def list_layer_kinds(c: Settings) -> list[str]:
    """The layers' kinds as the config lists them; without a list all see a window where the config has one."""
    listed = c["layer_types"]
    if listed:
        return list(listed)
    return ["sliding_attention" if c["sliding_window"] else "full_attention"] * c.layers


def alternate_kinds(
    period: int | str,
    one: str = "full_attention",
    other: str = "sliding_attention",
    default: int = 0,
    at: int = -1,
) -> LayerKinds:
    """One layer of every ``period`` (a number, or the key that has it, else ``default``) is ``one``, unless the config
    lists them.

    ``at`` is its place among those: the last, or 0 for the first.
    """

    def kinds(c: Settings) -> list[str]:
        listed = c["layer_types"]
        if listed:
            return list(listed)
        n = period if isinstance(period, int) else c[period] or default
        return [one if n and i % n == at % n else other for i in range(c.layers)]

    return kinds


def list_qwen_kinds(c: Settings) -> list[str]:
    """Qwen: layers from ``max_window_layers`` on see a window, where ``use_sliding_window`` is set.

    Published configs name a ``sliding_window`` beside ``use_sliding_window: false``; it is then none
    (configuration_qwen2.py: ``__post_init__``).
    """
    listed = c["layer_types"]
    if listed:
        return list(listed)
    first = (c["max_window_layers"] or 0) if c["use_sliding_window"] and c["sliding_window"] else c.layers
    return ["full_attention" if i < first else "sliding_attention" for i in range(c.layers)]


# ---- stacks and ends


def build_blocks(
    c: Settings,
    kinds: list[str],
    moe_layers: list[bool],
    mixer: Block | Mapping[str, Block],
    ffn: Block | None,
    moe: Block | None,
) -> list[Component]:
    """All layers: equal ones are built once and counted."""
    if len(kinds) != len(moe_layers):
        raise ValueError(f"the config lists the kinds of {len(kinds)} layers, and has {len(moe_layers)}")
    components: list[Component] = []
    for (kind, routed), times in Counter(zip(kinds, moe_layers, strict=True)).items():
        mix = mixer[kind] if isinstance(mixer, Mapping) else mixer
        feed_forward = moe if routed else ffn
        layer = mix(c, kind) + (feed_forward(c, kind) if feed_forward else [])
        components += repeat_block(layer, times)
    return components


def resolve_count(count: Count, c: Settings) -> int:
    return count if isinstance(count, int) else count(c)


def token_embeddings(
    name: str = "embed_tokens", positions: int | None = None, extra: Builder = build_nothing
) -> Builder:
    """The vocabulary, and learned positions where ``positions`` is not ``None``: so many rows more than the config has.

    OPT, BioGPT and BART keep two rows in front of the first position (modeling_opt.py:
    ``OPTLearnedPositionalEmbedding.offset``).
    """

    def build(c: Settings) -> list[Component]:
        tables: list[Component] = [embedding(name, c.vocab, c.hidden)]
        if positions is not None:
            tables.append(embedding("positions", c.size("positions") + positions, c.hidden))
        return tables + extra(c)

    return build


def output_layer(bias: bool | str = False, tied: bool | str = "tie_word_embeddings") -> Builder:
    """The output layer over the vocabulary, tied to the input embedding where the config ties it."""

    def build(c: Settings) -> list[Component]:
        added = c.vocab if c.holds(bias) else 0
        return [Weights("lm_head", c.hidden, c.vocab, added, 1, "tied" if c.holds(tied) else "head")]

    return build


def chain(*builders: Builder) -> Builder:
    """All of these, one after the other."""
    return lambda c: [component for build in builders for component in build(c)]


TOKENS, HEAD = token_embeddings(), output_layer()


def decoder(
    mixer: Block | Mapping[str, Block],
    ffn: Block | None,
    *,
    moe: Block | None = None,
    moe_layers: MoeLayers | None = None,
    kinds: LayerKinds = list_layer_kinds,
    norms: Count = 2,
    norm_arrays: Count = 1,
    final_norm: bool | Callable[[Settings], bool] = True,
    embed: Builder = TOKENS,
    extra: Builder = build_nothing,
    head: Builder = HEAD,
    kind: str = "decoder",
    depth: Callable[[Settings], int] = read_layers,
) -> Family:
    """One stack: embeddings, ``norms`` norms, a mixer and a feed-forward per layer, a last norm, an output layer.

    ``mixer`` by the layer's kind where they differ; ``norm_arrays`` as ``arrays`` of ``norm``; all layers have experts
    where ``moe`` is given without ``moe_layers``.
    """
    routed = moe_layers or (lambda c: [moe is not None] * c.layers)

    def body(c: Settings) -> list[Component]:
        components = embed(c) + build_blocks(c, kinds(c), routed(c), mixer, ffn, moe)
        arrays = resolve_count(norm_arrays, c)
        last = final_norm(c) if callable(final_norm) else final_norm
        components += norm("norm", c.hidden, arrays * (resolve_count(norms, c) * depth(c) + bool(last)))
        return components + extra(c)

    return Family(kind, body, head, kinds, routed, depth)
