"""Encoder-decoder models of text and speech, as the classes for conditional generation of Transformers 5.23 build them."""

from __future__ import annotations

from generator.model.blocks import Block, attention, gated, plain
from generator.model.parts import Item, conv, embedding, moved, norm, repeated
from generator.model.settings import Settings
from generator.model.spec import NeedsMetaDevice
from generator.model.stacks import Maker, Row, nothing, output

NAMES = "q_proj k_proj v_proj out_proj"
USUAL = attention(NAMES, bias=True)
CROSS = attention(NAMES, bias=True, context=lambda c: c.hidden)
WHISPER = attention(NAMES, bias=True, key_bias=False)
WHISPER_CROSS = attention(NAMES, bias=True, key_bias=False, context=lambda c: c.hidden)
FEED_FORWARD = plain("fc1 fc2")


def side(c: Settings, which: str) -> Settings:
    """The sizes of the encoder or the decoder by the names that a single stack has."""
    heads = c[f"{which}_attention_heads"]
    told = {"hidden_size": c.hidden, "num_attention_heads": heads, "intermediate_size": c[f"{which}_ffn_dim"]}
    return Settings(told | {"num_hidden_layers": c[f"{which}_layers"], "num_key_value_heads": heads}, "")


def stack(c: Settings, blocks: list[Block], norms: int, arrays: int = 2) -> list[Item]:
    """Equal layers of these blocks, each after or before a norm, and ``norms`` norms beside them."""
    layer = [item for block in blocks for item in block(c, "full_attention")]
    layer += norm("norm", c.hidden, arrays * len(blocks))
    return repeated(layer, c.layers) + norm("norm", c.hidden, arrays * norms)


def table(rows: str, more: int = 0) -> Maker:
    return lambda c: [embedding("embed_positions", c[rows] + more, c.hidden)] if c[rows] else []


def pair_kinds(encoder: str, decoder: str):
    """How many layers either side has."""
    return lambda c: ["encoder"] * (c[encoder] or 0) + ["decoder"] * (c[encoder] if c[decoder] is None else c[decoder])


def bart(
    norms: int,
    positions: tuple[Maker, Maker],
    self_attention: Block = USUAL,
    cross: Block = CROSS,
    ends: Maker = nothing,
    apart: bool = True,
) -> Row:
    """``norms`` beside those of the blocks on either side: of the embeddings, and after the last block.

    ``apart``: without tied embeddings each side has its own.
    """

    def body(c: Settings) -> list[Item]:
        encoder = stack(side(c, "encoder"), [self_attention, FEED_FORWARD], norms) + positions[0](c) + ends(c)
        decoder = stack(side(c, "decoder"), [self_attention, cross, FEED_FORWARD], norms) + positions[1](c)
        if c["share_encoder_decoder_embeddings"] is False:
            raise NeedsMetaDevice(f"{c.type!r} with two vocabularies is not in perfgen's tables")
        words = embedding("shared", c.vocab, c.hidden)
        if apart and not c["tie_word_embeddings"]:  # either side keeps a table of its own, and the common one stays
            words = words._replace(count=3)
        return [words, *moved(encoder, "encoder"), *decoder]

    return Row("encoder-decoder", body, output(), pair_kinds("encoder_layers", "decoder_layers"))


def t5_feed_forward(c: Settings, kind: str) -> list[Item]:
    form = c["feed_forward_proj"]
    return (gated("wi_0 wi_1 wo") if form.startswith("gated") else plain("wi wo", bias=False))(c, kind)


def t5(everywhere: bool = False) -> Row:
    """``everywhere``: each layer has its own table of relative positions, else the first of either side."""

    def body(c: Settings) -> list[Item]:
        names = "SelfAttention.q SelfAttention.k SelfAttention.v SelfAttention.o"
        cross = attention(names.replace("Self", "EncDec"), context=lambda c: c.hidden)
        below = c.but(num_hidden_layers=c.layers if c["num_decoder_layers"] is None else c["num_decoder_layers"])
        rows = embedding("relative_attention_bias", c["relative_attention_num_buckets"], c.heads)
        tables = [rows._replace(count=s.layers if everywhere else 1) for s in (c, below)]
        encoder = stack(c, [attention(names), t5_feed_forward], 1, 1)
        decoder = stack(below, [attention(names), cross, t5_feed_forward], 1, 1)
        return [
            embedding("shared", c.vocab, c.hidden),
            *moved([*encoder, tables[0]], "encoder"),
            *decoder,
            tables[1],
        ]

    return Row("encoder-decoder", body, output(tied=True), pair_kinds("num_layers", "num_decoder_layers"))


def whisper_ends(c: Settings) -> list[Item]:
    """Two convolutions over the spectrum."""
    return [conv("conv1", 3 * c["num_mel_bins"], c.hidden, True), conv("conv2", 3 * c.hidden, c.hidden, True)]


def speech_ends(c: Settings) -> list[Item]:
    """Convolutions that halve the length, each with a gate that halves the channels."""
    made: list[Item] = []
    channels = c["input_feat_per_channel"] * c["input_channels"]
    kernels = c["conv_kernel_sizes"]
    for i, kernel in enumerate(kernels):
        outputs = 2 * c.hidden if i == len(kernels) - 1 else c["conv_channels"]
        made.append(conv("conv", kernel * channels, outputs, True))
        channels = outputs // 2
    return made


SAME, AFTER_TWO = table("max_position_embeddings"), table("max_position_embeddings", 2)
ROWS: dict[str, Row] = {
    "bart": bart(1, (AFTER_TWO, AFTER_TWO)),
    "mbart": bart(2, (AFTER_TWO, AFTER_TWO)),
    "pegasus": bart(1, (SAME, SAME)),
    "blenderbot": bart(1, (SAME, SAME)),
    "blenderbot-small": bart(1, (SAME, SAME)),
    "marian": bart(0, (SAME, SAME)),
    "m2m_100": bart(1, (nothing, nothing)),
    "t5": t5(),
    "mt5": t5(),
    "umt5": t5(everywhere=True),
    "whisper": bart(
        1, (table("max_source_positions"), table("max_target_positions")), WHISPER, WHISPER_CROSS, whisper_ends, False
    ),
    "speech_to_text": bart(1, (nothing, nothing), ends=speech_ends, apart=False),
}
