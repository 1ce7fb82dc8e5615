"""Models of images, as ``AutoModel`` of Transformers 5.23 builds them; multimodal models have them for their image
encoders."""

from __future__ import annotations

from generator.model.blocks import Block, attention, gated_mlp, plain_mlp
from generator.model.builders import Builder, Count, Family, build_nothing, chain, decoder, repeat_kind
from generator.model.components import Component, conv, linear, norm, vector
from generator.model.settings import Settings

NAMES = "q_proj k_proj v_proj o_proj"
CLIP_NAMES = "q_proj k_proj v_proj out_proj"


def split_pair(value: int | list[int]) -> tuple[int, int]:
    """Height and width; one number is both."""
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def count_patches(c: Settings) -> int:
    """Whole patches of an image: what is left at the edge is cut off, as a convolution without padding does."""
    (height, width), (by, bx) = split_pair(c["image_size"]), split_pair(c["patch_size"])
    return (height // by) * (width // bx)


def patch_conv(bias: bool = True) -> Builder:
    def make(c: Settings) -> list[Component]:
        y, x = split_pair(c["patch_size"])
        return [conv("patch_embeddings.projection", y * x * c["num_channels"], c.hidden, bias)]

    return make


def learned_tokens(name: str, count: int | str = 1) -> Builder:
    """Tokens that are parameters: class, distillation, mask, registers."""
    return lambda c: [vector(name, c.hidden, count if isinstance(count, int) else c[count])]


def patch_positions(more: int = 1) -> Builder:
    """One for each patch, and ``more``."""
    return lambda c: [vector("position_embeddings", c.hidden, count_patches(c) + more)]


def norm_layer(name: str, arrays: int = 2) -> Builder:
    return lambda c: norm(name, c.hidden, arrays)


def include_if(key: str, make: Builder) -> Builder:
    return lambda c: make(c) if c[key] else []


def vit(
    ends: Builder,
    mixer: Block | None = None,
    ffn: Block | None = None,
    *,
    norm_arrays: Count = 2,
    final_norm: bool = True,
    kind: str = "vision",
) -> Family:
    """Blocks with norms before, a norm after the last; ``ends``: patches, positions, tokens, poolers."""
    return decoder(
        mixer or attention(bias="qkv_bias", out_bias=True),
        ffn or plain_mlp(),
        kinds=repeat_kind(),
        norm_arrays=norm_arrays,
        final_norm=final_norm,
        embed=ends,
        head=build_nothing,
        kind=kind,
    )


def build_vit_pooler(c: Settings) -> list[Component]:
    return [linear("pooler.dense", c.hidden, c["pooler_output_size"] or c.hidden, True, kind="outer")]


def layer_scales(key: str, count: int = 2) -> Builder:
    """A learned factor per channel after attention and after feed-forward; none where its starting value is not above
    0."""
    return lambda c: [vector("layer_scale", c.hidden, count * c.layers)] if (c[key] or 0) > 0 else []


def build_beit_positions(c: Settings) -> list[Component]:
    """Absolute, or relative by block or by model: differences of two patches, and three pairs with the class token
    (modeling_beit.py: num_relative_distance)."""
    components = (
        [vector("position_embeddings", c.hidden, count_patches(c) + 1)] if c["use_absolute_position_embeddings"] else []
    )
    (height, width), (by, bx) = split_pair(c["image_size"]), split_pair(c["patch_size"])
    rows = (2 * (height // by) - 1) * (2 * (width // bx) - 1) + 3
    tables = c.layers * bool(c["use_relative_position_bias"]) + bool(c["use_shared_relative_position_bias"])
    return [*components, *([vector("relative_position_bias", rows * c.heads, tables)] if tables else [])]


def build_dinov2_mlp(c: Settings, kind: str) -> list[Component]:
    """With a gate, two thirds of the width, rounded up to 8: as many weights as without (Dinov2SwiGLUFFN)."""
    width = int(c.hidden * c["mlp_ratio"])
    if not c["use_swiglu_ffn"]:
        return plain_mlp(ffn=lambda c: width)(c, kind)
    narrow = (int(width * 2 / 3) + 7) // 8 * 8
    return gated_mlp("weights_in weights_out", bias=True, ffn=lambda c: narrow)(c, kind)


def build_dinov3_mlp(c: Settings, kind: str) -> list[Component]:
    block = gated_mlp(bias="mlp_bias") if c["use_gated_mlp"] else plain_mlp("up_proj down_proj", bias="mlp_bias")
    return block(c, kind)


def build_siglip_head(c: Settings) -> list[Component]:
    """A learned query that attends to all patches (SiglipMultiheadAttentionPoolingHead: torch.nn.MultiheadAttention has
    one matrix for queries, keys and values)."""
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


VIT = chain(learned_tokens("cls_token"), patch_positions(), patch_conv())
DINO = chain(VIT, layer_scales("layerscale_value"))
SIGLIP = chain(patch_conv(), patch_positions(0))
CLIP_BLOCK = attention(CLIP_NAMES, bias=True)
FAMILIES: dict[str, Family] = {
    "vit": vit(chain(VIT, build_vit_pooler)),
    "vit_mae": vit(VIT),
    "ijepa": vit(chain(patch_positions(0), patch_conv())),
    # a class and a distillation token, each with a position
    "deit": vit(chain(learned_tokens("tokens", 2), patch_positions(2), patch_conv(), build_vit_pooler)),
    "beit": vit(
        chain(
            learned_tokens("cls_token"),
            patch_conv(),
            include_if("use_mask_token", learned_tokens("mask_token")),
            build_beit_positions,
            layer_scales("layer_scale_init_value"),
        ),
        attention(bias=True, key_bias=False),
    ),
    "dinov2": vit(chain(DINO, include_if("use_mask_token", learned_tokens("mask_token"))), ffn=build_dinov2_mlp),
    # no use_mask_token in its config: the mask token is always there (modeling_dinov2_with_registers.py)
    "dinov2_with_registers": vit(
        chain(DINO, learned_tokens("mask_token"), learned_tokens("register_tokens", "num_register_tokens")),
        ffn=build_dinov2_mlp,
    ),
    "dinov3_vit": vit(
        chain(
            learned_tokens("tokens", 2),  # class and mask; positions are rotary
            learned_tokens("register_tokens", "num_register_tokens"),
            patch_conv(),
            lambda c: [vector("layer_scale", c.hidden, 2 * c.layers)],
        ),
        attention(bias="query_bias", key_bias="key_bias", value_bias="value_bias", out_bias="proj_bias"),
        build_dinov3_mlp,
    ),
    "siglip_vision_model": vit(chain(SIGLIP, build_siglip_head), CLIP_BLOCK),
    "clip_vision_model": vit(
        chain(learned_tokens("class_embedding"), patch_conv(False), patch_positions(), norm_layer("pre_layrnorm")),
        CLIP_BLOCK,
    ),
    # rotary positions in two dimensions: no table of them
    "pixtral": vit(
        chain(patch_conv(False), norm_layer("ln_pre", 1)),
        attention(),
        gated_mlp(),
        norm_arrays=1,
        final_norm=False,
    ),
}
