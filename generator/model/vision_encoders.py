"""Encoders of images and sound that stand only inside multimodal models, as Transformers 5.23 builds them."""

from __future__ import annotations

from generator.model.blocks import attention, gated_mlp, plain_mlp
from generator.model.builders import Family, build_nothing, chain, repeat_kind
from generator.model.components import Component, conv, linear, norm, vector
from generator.model.seq2seq import FEED_FORWARD, WHISPER, build_stack, build_whisper_convs
from generator.model.settings import Settings
from generator.model.vision import count_patches, include_if, learned_tokens, patch_conv, vit

FUSED = attention("attn.qkv attn.proj", bias=True)


def build_cube_conv(c: Settings, width: int, bias: bool) -> Component:
    """Patches of a few pictures that follow each other: a picture alone is repeated (modeling_qwen2_vl.py:
    PatchEmbed)."""
    size = c["temporal_patch_size"] * c["patch_size"] ** 2 * c["in_channels"]
    return conv("patch_embed.proj", size, width, bias)


def build_merger(inputs: int, outputs: int) -> list[Component]:
    """Neighbouring patches to one token of the text model's width (modeling_qwen2_vl.py: PatchMerger)."""
    return [
        linear("merger.linear_fc1", inputs, inputs, True, kind="outer"),
        linear("merger.linear_fc2", inputs, outputs, True, kind="outer"),
    ]


def read_qwen2_vl_settings(c: Settings) -> Settings:
    """Qwen2-VL's image encoder: its ``hidden_size`` is the text model's, ``embed_dim`` its own
    (configuration_qwen2_vl.py)."""
    width = c["embed_dim"]
    sizes = {"hidden_size": width, "num_attention_heads": c["num_heads"], "num_hidden_layers": c["depth"]}
    return Settings(sizes | {"intermediate_size": int(width * c["mlp_ratio"])}, "")


def build_qwen2_vl_encoder(c: Settings) -> list[Component]:
    s = read_qwen2_vl_settings(c)
    joined = s.hidden * c["spatial_merge_size"] ** 2
    components = [
        build_cube_conv(c, s.hidden, False),
        *norm("merger.ln_q", s.hidden, 2),
        *build_merger(joined, c["hidden_size"]),
    ]
    return components + build_stack(s, [FUSED, plain_mlp("mlp.fc1 mlp.fc2")], 0)


def build_qwen2_5_vl_encoder(c: Settings) -> list[Component]:
    joined = c.hidden * c["spatial_merge_size"] ** 2
    components = [
        build_cube_conv(c, c.hidden, False),
        *norm("merger.ln_q", c.hidden, 1),
        *build_merger(joined, c["out_hidden_size"]),
    ]
    return components + build_stack(c, [FUSED, gated_mlp(bias=True)], 0, 1)


def build_qwen3_vl_encoder(c: Settings) -> list[Component]:
    """Blocks in the middle give what they see to the text model, each through a merger of its own, whose norm comes
    after patches are joined (modeling_qwen3_vl.py: deepstack_merger_list, use_postshuffle_norm)."""
    joined = c.hidden * c["spatial_merge_size"] ** 2
    components = [build_cube_conv(c, c.hidden, True), vector("pos_embed", c.hidden, c["num_position_embeddings"])]
    components += norm("merger.norm", c.hidden, 2) + build_merger(joined, c["out_hidden_size"])
    for _ in c["deepstack_visual_indexes"] or ():
        components += norm("merger.norm", joined, 2) + build_merger(joined, c["out_hidden_size"])
    return components + build_stack(c, [FUSED, plain_mlp("mlp.linear_fc1 mlp.linear_fc2")], 0)


def vision_encoder(body) -> Family:
    return Family("vision", body, build_nothing, repeat_kind())


def count_internvl_norm_arrays(c: Settings) -> int:
    return 2 if c["norm_type"] == "layer_norm" else 1


def build_internvl_ends(c: Settings) -> list[Component]:
    """Every block scales both its outputs, whatever the config's starting value."""
    components: list[Component] = [vector("layer_scales", c.hidden, 2 * c.layers)]
    if c["use_absolute_position_embeddings"]:
        components.append(vector("position_embeddings", c.hidden, count_patches(c) + 1))
    return components if c["use_mean_pooling"] else components + norm("layernorm", c.hidden, 2)


INTERN = vit(
    chain(
        learned_tokens("cls_token"),
        patch_conv(),
        include_if("use_mask_token", learned_tokens("mask_token")),
        build_internvl_ends,
    ),
    attention(
        "q_proj k_proj v_proj projection_layer",
        bias="attention_bias",
        out_bias=True,
        qk_norm="full",
        when="use_qk_norm",
    ),
    norm_arrays=count_internvl_norm_arrays,
    final_norm=False,
)


def build_audio_encoder(c: Settings) -> list[Component]:
    """Whisper's encoder."""
    components = [*build_whisper_convs(c), vector("embed_positions", c.hidden, c["max_source_positions"])]
    return components + build_stack(c, [WHISPER, FEED_FORWARD], 1)


ENCODERS: dict[str, Family] = {
    "qwen2_vl_vision": vision_encoder(build_qwen2_vl_encoder),
    "qwen2_5_vl_vision": vision_encoder(build_qwen2_5_vl_encoder),
    "qwen3_vl_vision": vision_encoder(build_qwen3_vl_encoder),
    "qwen3_vl_moe_vision": vision_encoder(build_qwen3_vl_encoder),
    "internvl_vision": INTERN,
    "qwen2_audio_encoder": Family("audio", build_audio_encoder, build_nothing, repeat_kind()),
}
