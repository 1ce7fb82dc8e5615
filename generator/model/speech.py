"""Encoders of sound, as ``AutoModel`` of Transformers 5.23 builds them (Whisper is among the encoder-decoders)."""

from __future__ import annotations

from generator.model.blocks import Block, attention, plain_mlp
from generator.model.builders import Family, build_nothing, chain, decoder, repeat_kind
from generator.model.components import Component, conv, linear, norm, vector
from generator.model.settings import Settings
from generator.model.vision import vit

NAMES = "q_proj k_proj v_proj out_proj"
NOT_IN_TABLE = ("add_adapter", "adapter_attn_dim", "conv_pos_batch_norm")
GATES = 8
"""outputs of the projection that gates WavLM's position biases (modeling_wavlm.py)"""


def build_wave_features(c: Settings) -> list[Component]:
    """Convolutions over the samples, their projection, the convolution that makes positions, and the first norm."""
    components: list[Component] = []
    inputs = 1
    for i, (width, kernel) in enumerate(zip(c["conv_dim"], c["conv_kernel"], strict=True)):
        components.append(conv("conv", kernel * inputs, width, bool(c["conv_bias"])))
        # "group": only the first is normed (modeling_wav2vec2.py: Wav2Vec2FeatureEncoder)
        components += norm("layer_norm", width, 2) if c["feat_extract_norm"] == "layer" or i == 0 else []
        inputs = width
    components += norm("feature_projection.layer_norm", inputs, 2) if c["feat_proj_layer_norm"] is not False else []
    components.append(linear("feature_projection.projection", inputs, c.hidden, True, kind="outer"))
    # weight_norm(dim=2) splits the convolution's weight into directions and a length for each place of the kernel
    kernel, groups = c["num_conv_pos_embeddings"], c["num_conv_pos_embedding_groups"]
    components += [
        conv("pos_conv_embed", kernel * c.hidden // groups, c.hidden, True),
        vector("pos_conv_norms", kernel),
    ]
    components += norm("encoder.layer_norm", c.hidden, 2)
    # the vector that masked frames are replaced by is made only where training masks any (Wav2Vec2Model)
    if c["mask_time_prob"] > 0 or c["mask_feature_prob"] > 0:
        components.append(vector("masked_spec_embed", c.hidden))
    return components


def build_wavlm_positions(c: Settings) -> list[Component]:
    """WavLM: one table of relative positions, in the first block, and a gate in each (modeling_wavlm.py:
    gru_rel_pos_linear)."""
    gate = linear("gru_rel_pos_linear", c.head_dim, GATES, True, count=c.layers)
    return [vector("rel_attn_embed", c["num_buckets"] * c.heads), vector("gru_rel_pos_const", c.heads * c.layers), gate]


def wave_encoder(extra=build_nothing, mixer: Block | None = None) -> Family:
    family = decoder(
        mixer or attention(NAMES, bias=True),
        plain_mlp("intermediate_dense output_dense"),
        embed=chain(build_wave_features, extra),
        norm_arrays=2,
        final_norm=False,
        kinds=repeat_kind(),
        head=build_nothing,
        kind="audio",
    )
    return family._replace(refuses=NOT_IN_TABLE)


def build_spectrum_patches(c: Settings) -> list[Component]:
    """The spectrogram's patches overlap: as many as strides fit. A class and a distillation token beside them, and a
    position for each of the two."""
    patch = c["patch_size"]
    rows = (c["num_mel_bins"] - patch) // c["frequency_stride"] + 1
    columns = (c["max_length"] - patch) // c["time_stride"] + 1
    tokens = vector("tokens_and_positions", c.hidden, rows * columns + 4)
    return [conv("patch_embeddings", patch * patch, c.hidden, True), tokens]


FAMILIES: dict[str, Family] = {
    "wav2vec2": wave_encoder(),
    "hubert": wave_encoder(),
    "wavlm": wave_encoder(build_wavlm_positions),
    "audio-spectrogram-transformer": vit(build_spectrum_patches)._replace(kind="audio"),
}
