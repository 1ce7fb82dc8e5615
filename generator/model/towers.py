"""What multimodal models put before their text model, where that is no model of its own: encoders of images and sound."""

from __future__ import annotations

from generator.model.blocks import gated, plain
from generator.model.parts import Item, conv, linear, norm, vector
from generator.model.seq2seq import FEED_FORWARD, WHISPER, stack, whisper_ends
from generator.model.settings import Settings
from generator.model.stacks import Row, every, nothing, once
from generator.model.vision import learned, patch_conv, patches, seen, vit, where

FUSED = seen("attn.qkv attn.proj", bias=True)


def cube_conv(c: Settings, width: int, bias: bool) -> Item:
    """Patches of a few pictures that follow each other."""
    size = c["temporal_patch_size"] * c["patch_size"] ** 2 * c["in_channels"]
    return conv("patch_embed.proj", size, width, bias)


def merger(inputs: int, outputs: int) -> list[Item]:
    return [
        linear("merger.linear_fc1", inputs, inputs, True, kind="outer"),
        linear("merger.linear_fc2", inputs, outputs, True, kind="outer"),
    ]


def qwen2_settings(c: Settings) -> Settings:
    """Qwen2-VL's tower: ``hidden_size`` is the width that it gives, ``embed_dim`` its own."""
    width = c["embed_dim"]
    told = {"hidden_size": width, "num_attention_heads": c["num_heads"], "num_hidden_layers": c["depth"]}
    return Settings(told | {"intermediate_size": int(width * c["mlp_ratio"])}, "")


def qwen2_tower(c: Settings) -> list[Item]:
    s = qwen2_settings(c)
    joined = s.hidden * c["spatial_merge_size"] ** 2
    made = [cube_conv(c, s.hidden, False), *norm("merger.ln_q", s.hidden, 2), *merger(joined, c["hidden_size"])]
    return made + stack(s, [FUSED, plain("mlp.fc1 mlp.fc2")], 0)


def qwen25_tower(c: Settings) -> list[Item]:
    joined = c.hidden * c["spatial_merge_size"] ** 2
    made = [cube_conv(c, c.hidden, False), *norm("merger.ln_q", c.hidden, 1), *merger(joined, c["out_hidden_size"])]
    return made + stack(c, [FUSED, gated(bias=True)], 0, 1)


def qwen3_tower(c: Settings) -> list[Item]:
    """Blocks in the middle give what they see to the text model, each through a merger of its own."""
    joined = c.hidden * c["spatial_merge_size"] ** 2
    made = [cube_conv(c, c.hidden, True), vector("pos_embed", c.hidden, c["num_position_embeddings"])]
    made += norm("merger.norm", c.hidden, 2) + merger(joined, c["out_hidden_size"])
    for _ in c["deepstack_visual_indexes"] or ():
        made += norm("merger.norm", joined, 2) + merger(joined, c["out_hidden_size"])
    return made + stack(c, [FUSED, plain("mlp.linear_fc1 mlp.linear_fc2")], 0)


def tower(body) -> Row:
    return Row("vision", body, nothing, every())


def intern_norms(c: Settings) -> int:
    return 2 if c["norm_type"] == "layer_norm" else 1


def intern_ends(c: Settings) -> list[Item]:
    """Every block scales both its outputs, whatever the config's starting value."""
    made: list[Item] = [vector("layer_scales", c.hidden, 2 * c.layers)]
    if c["use_absolute_position_embeddings"]:
        made.append(vector("position_embeddings", c.hidden, patches(c) + 1))
    return made if c["use_mean_pooling"] else made + norm("layernorm", c.hidden, 2)


INTERN = vit(
    once(learned("cls_token"), patch_conv(), where("use_mask_token", learned("mask_token")), intern_ends),
    seen(
        "q_proj k_proj v_proj projection_layer",
        bias="attention_bias",
        out_bias=True,
        qk_norm="full",
        when="use_qk_norm",
    ),
    norm_arrays=intern_norms,
    final_norm=False,
)


def sound(c: Settings) -> list[Item]:
    """Whisper's encoder."""
    made = [*whisper_ends(c), vector("embed_positions", c.hidden, c["max_source_positions"])]
    return made + stack(c, [WHISPER, FEED_FORWARD], 1)


TOWERS: dict[str, Row] = {
    "qwen2_vl_vision": tower(qwen2_tower),
    "qwen2_5_vl_vision": tower(qwen25_tower),
    "qwen3_vl_vision": tower(qwen3_tower),
    "qwen3_vl_moe_vision": tower(qwen3_tower),
    "internvl_vision": INTERN,
    "qwen2_audio_encoder": Row("audio", sound, nothing, every()),
}
