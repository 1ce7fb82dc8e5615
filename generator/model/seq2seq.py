"""Encoder-decoder models of text and speech, as the classes for conditional generation of Transformers 5.23 build
them."""

from __future__ import annotations

from generator.model.blocks import Block, attention, gated_mlp, plain_mlp
from generator.model.builders import Builder, Family, build_nothing, output_layer
from generator.model.components import Component, assign_stack, conv, embedding, norm, repeat_block
from generator.model.settings import Settings
from generator.model.spec import NeedsMetaDevice

NAMES = "q_proj k_proj v_proj out_proj"
USUAL = attention(NAMES, bias=True)
CROSS = attention(NAMES, bias=True, context=lambda c: c.hidden)
WHISPER = attention(NAMES, bias=True, key_bias=False)
WHISPER_CROSS = attention(NAMES, bias=True, key_bias=False, context=lambda c: c.hidden)
FEED_FORWARD = plain_mlp("fc1 fc2")


def read_side(c: Settings, which: str) -> Settings:
    """The sizes of the encoder or the decoder (``which``) by the names that a single stack has."""
    heads = c[f"{which}_attention_heads"]
    sizes = {"hidden_size": c.hidden, "num_attention_heads": heads, "intermediate_size": c[f"{which}_ffn_dim"]}
    return Settings(sizes | {"num_hidden_layers": c[f"{which}_layers"], "num_key_value_heads": heads}, "")


def build_stack(c: Settings, blocks: list[Block], norms: int, arrays: int = 2) -> list[Component]:
    """Equal layers of these blocks, each after or before a norm, and ``norms`` norms beside them."""
    layer = [component for block in blocks for component in block(c, "full_attention")]
    layer += norm("norm", c.hidden, arrays * len(blocks))
    return repeat_block(layer, c.layers) + norm("norm", c.hidden, arrays * norms)


def position_table(rows: str, more: int = 0) -> Builder:
    return lambda c: [embedding("embed_positions", c[rows] + more, c.hidden)] if c[rows] else []


def list_both_sides(encoder: str, decoder: str):
    """How many layers either side has."""
    return lambda c: ["encoder"] * (c[encoder] or 0) + ["decoder"] * (c[encoder] if c[decoder] is None else c[decoder])


def bart(
    norms: int,
    positions: tuple[Builder, Builder],
    self_attention: Block = USUAL,
    cross: Block = CROSS,
    ends: Builder = build_nothing,
    apart: bool = True,
) -> Family:
    """``norms`` beside those of the blocks on either side: of the embeddings, and after the last block.

    ``apart``: without tied embeddings each side has its own.
    """

    def body(c: Settings) -> list[Component]:
        encoder = (
            build_stack(read_side(c, "encoder"), [self_attention, FEED_FORWARD], norms) + positions[0](c) + ends(c)
        )
        decoder = build_stack(read_side(c, "decoder"), [self_attention, cross, FEED_FORWARD], norms) + positions[1](c)
        if c["share_encoder_decoder_embeddings"] is False:
            raise NeedsMetaDevice(f"{c.type!r} with two vocabularies is not in perfgen's tables")
        words = embedding("shared", c.vocab, c.hidden)
        if apart and not c["tie_word_embeddings"]:  # either side keeps a table of its own, and the common one stays
            words = words._replace(count=3)
        return [words, *assign_stack(encoder, "encoder"), *decoder]

    return Family("encoder-decoder", body, output_layer(), list_both_sides("encoder_layers", "decoder_layers"))


def build_t5_mlp(c: Settings, kind: str) -> list[Component]:
    form = c["feed_forward_proj"]
    return (gated_mlp("wi_0 wi_1 wo") if form.startswith("gated") else plain_mlp("wi wo", bias=False))(c, kind)


def t5(everywhere: bool = False) -> Family:
    """``everywhere``: each layer has its own table of relative positions, else the first of either side."""

    def body(c: Settings) -> list[Component]:
        names = "SelfAttention.q SelfAttention.k SelfAttention.v SelfAttention.o"
        cross = attention(names.replace("Self", "EncDec"), context=lambda c: c.hidden)
        below = c.replace(num_hidden_layers=c.layers if c["num_decoder_layers"] is None else c["num_decoder_layers"])
        rows = embedding("relative_attention_bias", c["relative_attention_num_buckets"], c.heads)
        tables = [rows._replace(count=s.layers if everywhere else 1) for s in (c, below)]
        encoder = build_stack(c, [attention(names), build_t5_mlp], 1, 1)
        decoder = build_stack(below, [attention(names), cross, build_t5_mlp], 1, 1)
        return [
            embedding("shared", c.vocab, c.hidden),
            *assign_stack([*encoder, tables[0]], "encoder"),
            *decoder,
            tables[1],
        ]

    # T5Config sets tie_word_embeddings whatever the file has, which decides only whether the decoder's output is scaled
    return Family("encoder-decoder", body, output_layer(tied=True), list_both_sides("num_layers", "num_decoder_layers"))


def build_whisper_convs(c: Settings) -> list[Component]:
    """Two convolutions of three frames over the spectrum (modeling_whisper.py: conv1, conv2)."""
    return [conv("conv1", 3 * c["num_mel_bins"], c.hidden, True), conv("conv2", 3 * c.hidden, c.hidden, True)]


def build_speech_convs(c: Settings) -> list[Component]:
    """Convolutions that halve the length, each with a gate that halves the channels (Conv1dSubsampler)."""
    components: list[Component] = []
    channels = c["input_feat_per_channel"] * c["input_channels"]
    kernels = c["conv_kernel_sizes"]
    for i, kernel in enumerate(kernels):
        outputs = 2 * c.hidden if i == len(kernels) - 1 else c["conv_channels"]
        components.append(conv("conv", kernel * channels, outputs, True))
        channels = outputs // 2
    return components


# BART and mBART keep two rows in front of the first position (modeling_bart.py: offset). Marian's and Pegasus'
# positions are computed, but parameters all the same (nn.Embedding); M2M-100's and Speech2Text's are buffers, which do
# not count
SAME, AFTER_TWO = position_table("max_position_embeddings"), position_table("max_position_embeddings", 2)
FAMILIES: dict[str, Family] = {
    "bart": bart(1, (AFTER_TWO, AFTER_TWO)),
    "mbart": bart(2, (AFTER_TWO, AFTER_TWO)),
    "pegasus": bart(1, (SAME, SAME)),
    "blenderbot": bart(1, (SAME, SAME)),
    "blenderbot-small": bart(1, (SAME, SAME)),
    "marian": bart(0, (SAME, SAME)),
    "m2m_100": bart(1, (build_nothing, build_nothing)),
    "t5": t5(),
    "mt5": t5(),
    "umt5": t5(everywhere=True),
    "whisper": bart(
        1,
        (position_table("max_source_positions"), position_table("max_target_positions")),
        WHISPER,
        WHISPER_CROSS,
        build_whisper_convs,
        False,
    ),
    "speech_to_text": bart(1, (build_nothing, build_nothing), ends=build_speech_convs, apart=False),
}
