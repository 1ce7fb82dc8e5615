"""Models of a text model (``text_config``) and towers for images or sound, as Transformers 5.23 joins them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from generator.model import decoders, hybrids, sparse, vision
from generator.model.blocks import attention, gated, moe
from generator.model.decoders import QWEN3_ATTENTION
from generator.model.encoders import table
from generator.model.parts import Item, linear, moved, norm, vector
from generator.model.settings import Settings
from generator.model.sparse import qwen_sparse
from generator.model.spec import NeedsMetaDevice
from generator.model.stacks import Maker, Row, decoder, every, nothing, once, output, qwen_windows
from generator.model.towers import TOWERS
from generator.model.vision import CLIP_BLOCK, SIGLIP, vit

Projector = Callable[[Settings, Settings, Settings], list[Item]]
"""from the settings of the whole model, the text model and the tower"""

CLIP_TEXT = once(table("token_embedding", "vocab_size"), table("position_embedding", "max_position_embeddings"))
NESTED: dict[str, Row] = {
    "qwen2_vl_text": decoder(attention(bias=True, out_bias=False), gated(), kinds=qwen_windows),
    "qwen2_5_vl_text": decoder(attention(bias=True, out_bias=False), gated(), kinds=qwen_windows),
    "qwen3_vl_text": decoder(QWEN3_ATTENTION, gated(), kinds=every()),
    "qwen3_vl_moe_text": decoder(QWEN3_ATTENTION, gated(), moe=moe(), sparse=qwen_sparse, kinds=every()),
    "clip_text_model": vit(CLIP_TEXT, CLIP_BLOCK, kind="encoder"),
    "siglip_text_model": vit(
        once(
            CLIP_TEXT,
            lambda c: [
                linear("head", c.hidden, c.hidden if c["projection_size"] is None else c["projection_size"], True)
            ],
        ),
        CLIP_BLOCK,
        kind="encoder",
    ),
    "idefics3_vision": vit(SIGLIP, CLIP_BLOCK),
    "smolvlm_vision": vit(SIGLIP, CLIP_BLOCK),
    **TOWERS,
}
"""types that stand only inside others"""
INSIDE = {**decoders.ROWS, **sparse.ROWS, **hybrids.ROWS, **vision.ROWS, **NESTED}


def row(c: Settings) -> Row:
    found = INSIDE.get(c.type)
    if found is None or any(c[key] for key in found.refuses):
        raise NeedsMetaDevice(f"{c.type!r} inside another model is not in perfgen's tables")
    return found


HEAD = output()


def joined(
    projector: Projector,
    *,
    tower: str = "vision_config",
    stack: str = "vision",
    kind: str = "multimodal",
    head: Maker = HEAD,
    either: bool = False,
) -> Row:
    """The text model with its output layer, the tower, and what projects from one to the other.

    ``either``: the embeddings are tied where the text model's config says so, too.
    """

    def body(c: Settings) -> list[Item]:
        text, seen = c.inner("text_config"), c.inner(tower)
        made = row(text).body(text) + moved(row(seen).body(seen), stack)
        return made + moved(projector(c, text, seen), "projector")

    def top(c: Settings) -> list[Item]:
        text = c.inner("text_config")
        tied = bool(c["tie_word_embeddings"] or (either and text["tie_word_embeddings"]))
        return head(text.but(tie_word_embeddings=tied))

    return text_sizes(Row(kind, body, top, every(), text="text_config"))


def text_sizes(of: Row) -> Row:
    """The row with the kinds and sizes of its text model's."""
    return of._replace(
        kinds=lambda text: row(text).kinds(text),
        sparse=lambda text: row(text).sparse(text),
        depth=lambda text: row(text).depth(text),
        width=lambda text: row(text).width(text),
    )


def lifted(config: Mapping) -> Mapping:
    """Qwen2-VL's published configs tell the text model's sizes beside the others."""
    if config.get("text_config") is not None:
        return config
    kept = (
        "model_type",
        "architectures",
        "vision_config",
        "tie_word_embeddings",
        "dtype",
        "torch_dtype",
        "quantization_config",
    )
    text = {key: value for key, value in config.items() if key not in kept}
    return {key: config[key] for key in kept if key in config} | {"text_config": text}


def features(c: Settings) -> int:
    """Layers of the tower whose outputs are joined."""
    told = c["vision_feature_layer"]
    return len(told) if isinstance(told, list) else 1


def outer(name: str, inputs: int, outputs: int, bias: bool = False) -> Item:
    return linear(name, inputs, outputs, bias, kind="outer")


def two_layers(c: Settings, text: Settings, seen: Settings) -> list[Item]:
    h, bias = text.hidden, bool(c["multimodal_projector_bias"])
    return [outer("linear_1", seen.hidden * features(c), h, bias), outer("linear_2", h, h, bias)]


def with_newline(c: Settings, text: Settings, seen: Settings) -> list[Item]:
    return [*two_layers(c, text, seen), vector("image_newline", text.hidden)]


def merged_patches(c: Settings, text: Settings, seen: Settings) -> list[Item]:
    merging = outer("patch_merger.merging_layer", seen.hidden * c["spatial_merge_size"] ** 2, seen.hidden)
    return [*two_layers(c, text, seen), merging, vector("norm", seen.hidden)]


def gemma_projector(c: Settings, text: Settings, seen: Settings) -> list[Item]:
    matrix = linear("mm_input_projection_weight", seen.hidden, text.hidden, kind="router")
    return [matrix, vector("mm_soft_emb_norm", seen.hidden)]


def one_layer(c: Settings, text: Settings, seen: Settings) -> list[Item]:
    return [outer("linear", seen.hidden, text.hidden, True)]


def to_projection(c: Settings, text: Settings, seen: Settings) -> list[Item]:
    return [outer("linear", seen.hidden, c["projection_dim"], True)]


def shuffled(c: Settings, text: Settings, seen: Settings) -> list[Item]:
    return [outer("modality_projection.proj", seen.hidden * c["scale_factor"] ** 2, text.hidden)]


def intern_projector(c: Settings, text: Settings, seen: Settings) -> list[Item]:
    wide, h = seen.hidden * int(1 / c["downsample_ratio"]) ** 2, text.hidden
    return [*norm("layer_norm", wide, 2), outer("linear_1", wide, h, True), outer("linear_2", h, h, True)]


def none(c: Settings, text: Settings, seen: Settings) -> list[Item]:
    """The tower ends in the text model's width."""
    return []


def clip_projector(c: Settings, text: Settings, seen: Settings) -> list[Item]:
    width = c["projection_dim"]
    return [outer("visual", seen.hidden, width), outer("text", text.hidden, width), vector("logit_scale", 1)]


ROWS: dict[str, Row] = {
    "llava": joined(two_layers, either=True),
    "llava_next": joined(with_newline),
    "llava_onevision": joined(with_newline, either=True),
    "mistral3": joined(merged_patches),
    "paligemma": joined(to_projection),
    "gemma3": joined(gemma_projector, kind="decoder"),
    "idefics3": joined(shuffled),
    "smolvlm": joined(shuffled),
    "internvl": joined(intern_projector),
    "qwen2_vl": joined(none, either=True)._replace(lifted=lifted),
    "qwen2_5_vl": joined(none, either=True)._replace(lifted=lifted),
    "qwen3_vl": joined(none),
    "qwen3_vl_moe": joined(none),
    "qwen2_audio": joined(one_layer, tower="audio_config", stack="audio", head=output(tied=False)),
    "clip": joined(clip_projector, head=nothing)._replace(refuses=("text_config_dict", "vision_config_dict")),
    "siglip": joined(lambda c, text, seen: [vector("logit_scale", 1, 2)], head=nothing),
}
