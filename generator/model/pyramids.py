"""Models of images in stages, each of fewer and wider places: windows of attention and convolutions."""

from __future__ import annotations

from generator.model.blocks import Block, attention, plain
from generator.model.parts import Item, conv, linear, norm, repeated, vector
from generator.model.settings import Settings
from generator.model.stacks import Kinds, Maker, Row, nothing
from generator.model.vision import patches, two

CONTINUOUS_BIAS_WIDTH = 512
"""of the small network that gives Swin 2 its position biases (modeling_swinv2.py)"""


def stages(kind: str, body: Maker, width) -> Row:
    """``kind`` of all layers; ``width`` of the last stage."""
    kinds: Kinds = lambda c: [kind] * sum(c["depths"])  # noqa: E731
    return Row("vision", body, nothing, kinds, depth=lambda c: sum(c["depths"]), width=width)


def swin_width(c: Settings) -> int:
    return c["embed_dim"] << (len(c["depths"]) - 1)


def swin_stage(c: Settings, stage: int) -> Settings:
    hidden = c["embed_dim"] << stage
    told = {"hidden_size": hidden, "num_attention_heads": c["num_heads"][stage]}
    return Settings(told | {"intermediate_size": int(hidden * c["mlp_ratio"]), "qkv_bias": c["qkv_bias"]}, "")


def swin(mixer: Block, positions, merged_arrays: int, tokens: int = 0) -> Row:
    """``positions``: what a block's attention has for them; ``merged_arrays``: widths that the norm of a merge has.

    ``tokens``: absolute positions beside those of the patches.
    """

    def body(c: Settings) -> list[Item]:
        y, x = two(c["patch_size"])
        width, last = c["embed_dim"], swin_width(c)
        made: list[Item] = [conv("patch_embeddings", y * x * c["num_channels"], width, True)]
        made += norm("norm", width, 2) + norm("norm", last, 2)
        if c["use_absolute_embeddings"]:
            made.append(vector("position_embeddings", width, patches(c) + tokens))
        for i, depth in enumerate(c["depths"]):
            s = swin_stage(c, i)
            block = mixer(s, "window_attention") + plain()(s, "window_attention") + norm("norm", s.hidden, 4)
            made += repeated(block + positions(c, s.heads), depth)
            if i + 1 < len(c["depths"]):
                made.append(linear("downsample.reduction", 4 * s.hidden, 2 * s.hidden, kind="outer"))
                made += norm("downsample.norm", merged_arrays * s.hidden, 2)
        return made

    return stages("window_attention", body, swin_width)


def table_of_biases(c: Settings, heads: int) -> list[Item]:
    y, x = two(c["window_size"])
    return [vector("relative_position_bias_table", (2 * y - 1) * (2 * x - 1), heads)]


def network_of_biases(c: Settings, heads: int) -> list[Item]:
    wide = CONTINUOUS_BIAS_WIDTH
    return [
        linear("mlp.0", 2, wide, True, kind="outer"),
        linear("mlp.2", wide, heads, kind="outer"),
        vector("scale", heads),
    ]


def convnext(second: bool) -> Row:
    def body(c: Settings) -> list[Item]:
        y, x = two(c["patch_size"])
        widths = c["hidden_sizes"][: c["num_stages"]]
        made: list[Item] = [conv("patch_embeddings", y * x * c["num_channels"], widths[0], True)]
        made += norm("norm", widths[0], 2) + norm("norm", widths[-1], 2)
        scaled = second is False and c["layer_scale_init_value"] > 0
        for i, (width, depth) in enumerate(zip(widths, c["depths"], strict=False)):
            layer: list[Item] = [conv("dwconv", 49, width, True), *norm("layernorm", width, 2)]
            layer += [linear("pwconv1", width, 4 * width, True), linear("pwconv2", 4 * width, width, True)]
            layer += [vector("grn", 4 * width, 2)] if second else []
            layer += [vector("layer_scale_parameter", width)] if scaled else []
            made += repeated(layer, depth)
            if i:
                made += norm("downsampling_layer.0", widths[i - 1], 2)
                made.append(conv("downsampling_layer.1", 4 * widths[i - 1], width, True))
        return made

    return stages("conv", body, lambda c: c["hidden_sizes"][-1])


def with_norm(kernel: int, inputs: int, outputs: int) -> list[Item]:
    """A convolution without bias and its batch norm."""
    return [conv("convolution", kernel * kernel * inputs, outputs), *norm("normalization", outputs, 2)]


def resnet_layer(c: Settings, inputs: int, outputs: int, halves: bool) -> list[Item]:
    made = with_norm(1, inputs, outputs) if inputs != outputs or halves else []
    if c["layer_type"] == "basic":
        return made + with_norm(3, inputs, outputs) + with_norm(3, outputs, outputs)
    inside = outputs // 4
    return made + with_norm(1, inputs, inside) + with_norm(3, inside, inside) + with_norm(1, inside, outputs)


def resnet(c: Settings) -> list[Item]:
    made = with_norm(7, c["num_channels"], c["embedding_size"])
    inputs = c["embedding_size"]
    for i, (outputs, depth) in enumerate(zip(c["hidden_sizes"], c["depths"], strict=False)):
        made += resnet_layer(c, inputs, outputs, i > 0 or c["downsample_in_first_stage"])
        made += repeated(resnet_layer(c, outputs, outputs, False), depth - 1)
        inputs = outputs
    return made


NAMES2 = "query key value output.dense"
ROWS: dict[str, Row] = {
    "swin": swin(attention(bias="qkv_bias", out_bias=True, causal=False), table_of_biases, 4),
    "swinv2": swin(
        attention(NAMES2, bias="qkv_bias", key_bias=False, out_bias=True, causal=False), network_of_biases, 2, 1
    ),
    "convnext": convnext(False),
    "convnextv2": convnext(True),
    "resnet": stages("conv", resnet, lambda c: c["hidden_sizes"][-1]),
}
