"""Hierarchical vision models, as ``AutoModel`` of Transformers 5.23 builds them: in stages, each of fewer and wider
places.

Swin attends within windows; ConvNeXT and ResNet convolve.
"""

from __future__ import annotations

from generator.model.blocks import Block, attention, plain_mlp
from generator.model.builders import Builder, Family, LayerKinds, build_nothing
from generator.model.components import Component, conv, linear, norm, repeat_block, vector
from generator.model.settings import Settings
from generator.model.vision import count_patches, split_pair

CONTINUOUS_BIAS_WIDTH = 512
"""of the small network that gives Swin 2 its position biases (modeling_swinv2.py)"""


def staged_family(kind: str, body: Builder, width) -> Family:
    """``kind`` of all layers; ``width`` of the last stage."""
    kinds: LayerKinds = lambda c: [kind] * sum(c["depths"])  # noqa: E731
    return Family("vision", body, build_nothing, kinds, depth=lambda c: sum(c["depths"]), width=width)


def compute_swin_width(c: Settings) -> int:
    return c["embed_dim"] << (len(c["depths"]) - 1)


def read_swin_stage(c: Settings, stage: int) -> Settings:
    """One stage's sizes by the names that a single stack has; each stage is twice as wide as the one before."""
    hidden = c["embed_dim"] << stage
    sizes = {"hidden_size": hidden, "num_attention_heads": c["num_heads"][stage]}
    return Settings(sizes | {"intermediate_size": int(hidden * c["mlp_ratio"]), "qkv_bias": c["qkv_bias"]}, "")


def swin(mixer: Block, positions, merged_arrays: int, tokens: int = 0) -> Family:
    """``positions``: what a block's attention has for them; ``merged_arrays``: widths that the norm of a merge has.

    ``tokens``: absolute positions beside those of the patches.
    """

    def body(c: Settings) -> list[Component]:
        y, x = split_pair(c["patch_size"])
        width, last = c["embed_dim"], compute_swin_width(c)
        components: list[Component] = [conv("patch_embeddings", y * x * c["num_channels"], width, True)]
        components += norm("norm", width, 2) + norm("norm", last, 2)
        if c["use_absolute_embeddings"]:
            components.append(vector("position_embeddings", width, count_patches(c) + tokens))
        for i, depth in enumerate(c["depths"]):
            s = read_swin_stage(c, i)
            block = mixer(s, "window_attention") + plain_mlp()(s, "window_attention") + norm("norm", s.hidden, 4)
            components += repeat_block(block + positions(c, s.heads), depth)
            if i + 1 < len(c["depths"]):
                # four neighbours become one of twice the width (SwinPatchMerging); Swin 2 norms after it, so half as
                # wide
                components.append(linear("downsample.reduction", 4 * s.hidden, 2 * s.hidden, kind="outer"))
                components += norm("downsample.norm", merged_arrays * s.hidden, 2)
        return components

    return staged_family("window_attention", body, compute_swin_width)


def build_bias_table(c: Settings, heads: int) -> list[Component]:
    """A bias for every difference of two places in a window."""
    y, x = split_pair(c["window_size"])
    return [vector("relative_position_bias_table", (2 * y - 1) * (2 * x - 1), heads)]


def build_bias_network(c: Settings, heads: int) -> list[Component]:
    """Biases computed from the difference, so that windows of another size fit (continuous_position_bias_mlp), and a
    scale."""
    wide = CONTINUOUS_BIAS_WIDTH
    return [
        linear("mlp.0", 2, wide, True, kind="outer"),
        linear("mlp.2", wide, heads, kind="outer"),
        vector("scale", heads),
    ]


def convnext(second: bool) -> Family:
    def body(c: Settings) -> list[Component]:
        y, x = split_pair(c["patch_size"])
        widths = c["hidden_sizes"][: c["num_stages"]]
        components: list[Component] = [conv("patch_embeddings", y * x * c["num_channels"], widths[0], True)]
        components += norm("norm", widths[0], 2) + norm("norm", widths[-1], 2)
        scaled = second is False and c["layer_scale_init_value"] > 0
        for i, (width, depth) in enumerate(zip(widths, c["depths"], strict=False)):
            layer: list[Component] = [conv("dwconv", 7 * 7, width, True), *norm("layernorm", width, 2)]
            layer += [linear("pwconv1", width, 4 * width, True), linear("pwconv2", 4 * width, width, True)]
            # the second version norms responses instead of scaling layers (modeling_convnextv2.py: ConvNextV2GRN)
            layer += [vector("grn", 4 * width, 2)] if second else []
            layer += [vector("layer_scale_parameter", width)] if scaled else []
            components += repeat_block(layer, depth)
            if i:  # every stage but the first begins with a norm and a 2 × 2 convolution
                components += norm("downsampling_layer.0", widths[i - 1], 2)
                components.append(conv("downsampling_layer.1", 4 * widths[i - 1], width, True))
        return components

    return staged_family("conv", body, lambda c: c["hidden_sizes"][-1])


def build_conv_with_norm(kernel: int, inputs: int, outputs: int) -> list[Component]:
    """A convolution without bias and its batch norm."""
    return [conv("convolution", kernel * kernel * inputs, outputs), *norm("normalization", outputs, 2)]


def build_resnet_layer(c: Settings, inputs: int, outputs: int, halves: bool) -> list[Component]:
    """``halves``: the layer takes every second place, and so does its shortcut, by a convolution (ResNetShortCut)."""
    components = build_conv_with_norm(1, inputs, outputs) if inputs != outputs or halves else []
    if c["layer_type"] == "basic":
        return components + build_conv_with_norm(3, inputs, outputs) + build_conv_with_norm(3, outputs, outputs)
    inside = outputs // 4  # a bottleneck (ResNetBottleNeckLayer: reduction)
    return (
        components
        + build_conv_with_norm(1, inputs, inside)
        + build_conv_with_norm(3, inside, inside)
        + build_conv_with_norm(1, inside, outputs)
    )


def build_resnet(c: Settings) -> list[Component]:
    components = build_conv_with_norm(7, c["num_channels"], c["embedding_size"])
    inputs = c["embedding_size"]
    for i, (outputs, depth) in enumerate(zip(c["hidden_sizes"], c["depths"], strict=False)):
        components += build_resnet_layer(c, inputs, outputs, i > 0 or c["downsample_in_first_stage"])
        components += repeat_block(build_resnet_layer(c, outputs, outputs, False), depth - 1)
        inputs = outputs
    return components


NAMES2 = "query key value output.dense"
FAMILIES: dict[str, Family] = {
    "swin": swin(attention(bias="qkv_bias", out_bias=True), build_bias_table, 4),
    "swinv2": swin(attention(NAMES2, bias="qkv_bias", key_bias=False, out_bias=True), build_bias_network, 2, 1),
    "convnext": convnext(False),
    "convnextv2": convnext(True),
    "resnet": staged_family("conv", build_resnet, lambda c: c["hidden_sizes"][-1]),
}
