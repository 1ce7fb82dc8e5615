"""Encoders of sound, as ``AutoModel`` of Transformers 5.23 builds them (Whisper is among the encoder-decoders)."""

from __future__ import annotations

from generator.model.blocks import Block, attention, plain
from generator.model.parts import Item, conv, linear, norm, vector
from generator.model.settings import Settings
from generator.model.stacks import Row, decoder, every, nothing, once
from generator.model.vision import vit

NAMES = "q_proj k_proj v_proj out_proj"
UNKNOWN = ("add_adapter", "adapter_attn_dim", "conv_pos_batch_norm")
GATES = 8
"""outputs of the projection that gates WavLM's position biases (modeling_wavlm.py)"""


def waves(c: Settings) -> list[Item]:
    """Convolutions over the samples, their projection, the convolution that tells positions, and the first norm."""
    made: list[Item] = []
    inputs = 1
    for i, (width, kernel) in enumerate(zip(c["conv_dim"], c["conv_kernel"], strict=True)):
        made.append(conv("conv", kernel * inputs, width, bool(c["conv_bias"])))
        made += norm("layer_norm", width, 2) if c["feat_extract_norm"] == "layer" or i == 0 else []
        inputs = width
    made += norm("feature_projection.layer_norm", inputs, 2) if c["feat_proj_layer_norm"] is not False else []
    made.append(linear("feature_projection.projection", inputs, c.hidden, True, kind="outer"))
    kernel, groups = c["num_conv_pos_embeddings"], c["num_conv_pos_embedding_groups"]
    made += [conv("pos_conv_embed", kernel * c.hidden // groups, c.hidden, True), vector("pos_conv_norms", kernel)]
    made += norm("encoder.layer_norm", c.hidden, 2)
    if c["mask_time_prob"] > 0 or c["mask_feature_prob"] > 0:
        made.append(vector("masked_spec_embed", c.hidden))
    return made


def gated_positions(c: Settings) -> list[Item]:
    """WavLM: one table of relative positions, and a gate in each block."""
    gate = linear("gru_rel_pos_linear", c.head_dim, GATES, True, count=c.layers)
    return [vector("rel_attn_embed", c["num_buckets"] * c.heads), vector("gru_rel_pos_const", c.heads * c.layers), gate]


def wave_encoder(extra=nothing, mixer: Block | None = None) -> Row:
    row = decoder(
        mixer or attention(NAMES, bias=True, causal=False),
        plain("intermediate_dense output_dense"),
        embed=once(waves, extra),
        norm_arrays=2,
        final_norm=False,
        kinds=every(),
        head=nothing,
        kind="audio",
    )
    return row._replace(refuses=UNKNOWN)


def spectrum(c: Settings) -> list[Item]:
    """The spectrogram's patches overlap: as many as strides fit. Two tokens beside them."""
    patch = c["patch_size"]
    rows = (c["num_mel_bins"] - patch) // c["frequency_stride"] + 1
    columns = (c["max_length"] - patch) // c["time_stride"] + 1
    tokens = vector("tokens_and_positions", c.hidden, rows * columns + 4)
    return [conv("patch_embeddings", patch * patch, c.hidden, True), tokens]


ROWS: dict[str, Row] = {
    "wav2vec2": wave_encoder(),
    "hubert": wave_encoder(),
    "wavlm": wave_encoder(gated_positions),
    "audio-spectrogram-transformer": vit(spectrum)._replace(kind="audio"),
}
