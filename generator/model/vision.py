"""Models of images, as ``AutoModel`` of Transformers 5.23 builds them; multimodal models have them for towers."""

from __future__ import annotations

from generator.model.blocks import Block, attention, gated, plain
from generator.model.parts import Item, conv, linear, norm, vector
from generator.model.settings import Settings
from generator.model.stacks import Maker, Number, Row, decoder, every, nothing, once

NAMES = "q_proj k_proj v_proj o_proj"
CLIP_NAMES = "q_proj k_proj v_proj out_proj"


def seen(names: str = NAMES, **more) -> Block:
    """Attention to every patch."""
    return attention(names, causal=False, **more)


def two(value: int | list[int]) -> tuple[int, int]:
    """Height and width; one number says both."""
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def patches(c: Settings) -> int:
    (height, width), (by, bx) = two(c["image_size"]), two(c["patch_size"])
    return (height // by) * (width // bx)


def patch_conv(bias: bool = True) -> Maker:
    def make(c: Settings) -> list[Item]:
        y, x = two(c["patch_size"])
        return [conv("patch_embeddings.projection", y * x * c["num_channels"], c.hidden, bias)]

    return make


def learned(name: str, count: int | str = 1) -> Maker:
    """Tokens that are parameters: class, distillation, mask, registers."""
    return lambda c: [vector(name, c.hidden, count if isinstance(count, int) else c[count])]


def positions(more: int = 1) -> Maker:
    """One for each patch, and ``more``."""
    return lambda c: [vector("position_embeddings", c.hidden, patches(c) + more)]


def normed(name: str, arrays: int = 2) -> Maker:
    return lambda c: norm(name, c.hidden, arrays)


def where(key: str, make: Maker) -> Maker:
    return lambda c: make(c) if c[key] else []


def vit(
    ends: Maker,
    mixer: Block | None = None,
    ffn: Block | None = None,
    *,
    norm_arrays: Number = 2,
    final_norm: bool = True,
    kind: str = "vision",
) -> Row:
    """Blocks with norms before, a norm after the last; ``ends``: patches, positions, tokens, poolers."""
    return decoder(
        mixer or seen(bias="qkv_bias", out_bias=True),
        ffn or plain(),
        kinds=every(),
        norm_arrays=norm_arrays,
        final_norm=final_norm,
        embed=ends,
        head=nothing,
        kind=kind,
    )


def vit_pooler(c: Settings) -> list[Item]:
    return [linear("pooler.dense", c.hidden, c["pooler_output_size"] or c.hidden, True, kind="outer")]


def layer_scales(key: str, count: int = 2) -> Maker:
    return lambda c: [vector("layer_scale", c.hidden, count * c.layers)] if (c[key] or 0) > 0 else []


def beit_positions(c: Settings) -> list[Item]:
    """Absolute, or relative by block or by model: differences of two patches, and three pairs with the class token."""
    made = [vector("position_embeddings", c.hidden, patches(c) + 1)] if c["use_absolute_position_embeddings"] else []
    (height, width), (by, bx) = two(c["image_size"]), two(c["patch_size"])
    rows = (2 * (height // by) - 1) * (2 * (width // bx) - 1) + 3
    tables = c.layers * bool(c["use_relative_position_bias"]) + bool(c["use_shared_relative_position_bias"])
    return [*made, *([vector("relative_position_bias", rows * c.heads, tables)] if tables else [])]


def dino_feed_forward(c: Settings, kind: str) -> list[Item]:
    width = int(c.hidden * c["mlp_ratio"])
    if not c["use_swiglu_ffn"]:
        return plain(ffn=lambda c: width)(c, kind)
    narrow = (int(width * 2 / 3) + 7) // 8 * 8
    return gated("weights_in weights_out", bias=True, ffn=lambda c: narrow)(c, kind)


def dinov3_feed_forward(c: Settings, kind: str) -> list[Item]:
    made = gated(bias="mlp_bias") if c["use_gated_mlp"] else plain("up_proj down_proj", bias="mlp_bias")
    return made(c, kind)


def siglip_head(c: Settings) -> list[Item]:
    """A learned query that attends to all patches."""
    if c["vision_use_head"] is False:
        return []
    h = c.hidden
    return [
        vector("head.probe", h),
        linear("head.attention.in_proj", h, 3 * h, True, kind="outer"),
        linear("head.attention.out_proj", h, h, True, kind="outer"),
        vector("head.layernorm", h, 2),
        linear("head.mlp.fc1", h, c.ffn, True, kind="outer"),
        linear("head.mlp.fc2", c.ffn, h, True, kind="outer"),
    ]


VIT = once(learned("cls_token"), positions(), patch_conv())
DINO = once(VIT, layer_scales("layerscale_value"))
SIGLIP = once(patch_conv(), positions(0))
CLIP_BLOCK = seen(CLIP_NAMES, bias=True)
ROWS: dict[str, Row] = {
    "vit": vit(once(VIT, vit_pooler)),
    "vit_mae": vit(VIT),
    "ijepa": vit(once(positions(0), patch_conv())),
    "deit": vit(once(learned("tokens", 2), positions(2), patch_conv(), vit_pooler)),
    "beit": vit(
        once(
            learned("cls_token"),
            patch_conv(),
            where("use_mask_token", learned("mask_token")),
            beit_positions,
            layer_scales("layer_scale_init_value"),
        ),
        seen(bias=True, key_bias=False),
    ),
    "dinov2": vit(once(DINO, where("use_mask_token", learned("mask_token"))), ffn=dino_feed_forward),
    "dinov2_with_registers": vit(
        once(DINO, learned("mask_token"), learned("register_tokens", "num_register_tokens")), ffn=dino_feed_forward
    ),
    "dinov3_vit": vit(
        once(
            learned("tokens", 2),
            learned("register_tokens", "num_register_tokens"),
            patch_conv(),
            lambda c: [vector("layer_scale", c.hidden, 2 * c.layers)],
        ),
        seen(bias="query_bias", key_bias="key_bias", value_bias="value_bias", out_bias="proj_bias"),
        dinov3_feed_forward,
    ),
    "siglip_vision_model": vit(once(SIGLIP, siglip_head), CLIP_BLOCK),
    "clip_vision_model": vit(
        once(learned("class_embedding"), patch_conv(False), positions(), normed("pre_layrnorm")), CLIP_BLOCK
    ),
    "pixtral": vit(once(patch_conv(False), normed("ln_pre", 1)), seen(), gated(), norm_arrays=1, final_norm=False),
}
