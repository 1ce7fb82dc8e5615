"""Multimodal models: a text model (``text_config``), an encoder of images or sound, and what projects from one to the
other.

As Transformers 5.23 joins them. A type that stands only inside others belongs to ``NESTED``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from generator.model import decoders, hybrids, moe, vision
from generator.model.blocks import attention, gated_mlp, routed_experts
from generator.model.builders import (
    Builder,
    Family,
    build_nothing,
    chain,
    decoder,
    list_qwen_kinds,
    output_layer,
    repeat_kind,
)
from generator.model.components import Component, assign_stack, linear, norm, vector
from generator.model.decoders import QWEN3_ATTENTION
from generator.model.encoders import embedding_table
from generator.model.moe import mark_qwen_moe_layers
from generator.model.settings import Settings
from generator.model.spec import NeedsMetaDevice
from generator.model.vision import CLIP_BLOCK, SIGLIP, vit
from generator.model.vision_encoders import ENCODERS

Projector = Callable[[Settings, Settings, Settings], list[Component]]
"""from the settings of the whole model, the text model and the encoder"""

CLIP_TEXT = chain(
    embedding_table("token_embedding", "vocab_size"), embedding_table("position_embedding", "max_position_embeddings")
)
NESTED: dict[str, Family] = {
    "qwen2_vl_text": decoder(attention(bias=True, out_bias=False), gated_mlp(), kinds=list_qwen_kinds),
    "qwen2_5_vl_text": decoder(attention(bias=True, out_bias=False), gated_mlp(), kinds=list_qwen_kinds),
    "qwen3_vl_text": decoder(QWEN3_ATTENTION, gated_mlp(), kinds=repeat_kind()),
    "qwen3_vl_moe_text": decoder(
        QWEN3_ATTENTION, gated_mlp(), moe=routed_experts(), moe_layers=mark_qwen_moe_layers, kinds=repeat_kind()
    ),
    "clip_text_model": vit(CLIP_TEXT, CLIP_BLOCK, kind="encoder"),
    "siglip_text_model": vit(
        chain(
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
    **ENCODERS,
}
"""types that stand only inside others"""
INSIDE = {**decoders.FAMILIES, **moe.FAMILIES, **hybrids.FAMILIES, **vision.FAMILIES, **NESTED}


def find_nested_family(c: Settings) -> Family:
    family = INSIDE.get(c.type)
    if family is None or any(c[key] for key in family.refuses):
        raise NeedsMetaDevice(f"{c.type!r} inside another model is not in perfgen's tables")
    return family


HEAD = output_layer()


def multimodal_family(
    projector: Projector,
    *,
    encoder: str = "vision_config",
    stack: str = "vision",
    kind: str = "multimodal",
    head: Builder = HEAD,
    either: bool = False,
) -> Family:
    """The text model with its output layer, the encoder (the key of its config), and the projector.

    ``either``: the embeddings are also tied where only the text model's config ties them, as old releases saved it
    (configuration_llava.py, configuration_qwen2_vl.py: __post_init__).
    """

    def body(c: Settings) -> list[Component]:
        text, inner = c.nested("text_config"), c.nested(encoder)
        components = find_nested_family(text).body(text) + assign_stack(find_nested_family(inner).body(inner), stack)
        return components + assign_stack(projector(c, text, inner), "projector")

    def top(c: Settings) -> list[Component]:
        text = c.nested("text_config")
        tied = bool(c["tie_word_embeddings"] or (either and text["tie_word_embeddings"]))
        return head(text.replace(tie_word_embeddings=tied))

    return take_text_sizes(Family(kind, body, top, repeat_kind(), text="text_config"))


def take_text_sizes(of: Family) -> Family:
    """The row with the kinds and sizes of its text model's."""
    return of._replace(
        kinds=lambda text: find_nested_family(text).kinds(text),
        moe_layers=lambda text: find_nested_family(text).moe_layers(text),
        depth=lambda text: find_nested_family(text).depth(text),
        width=lambda text: find_nested_family(text).width(text),
    )


def nest_text_config(config: Mapping) -> Mapping:
    """Qwen2-VL's published configs hold the text model's sizes beside the others (configuration_qwen2_vl.py:
    text_params)."""
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


def count_feature_layers(c: Settings) -> int:
    """Layers of the encoder whose outputs are joined (modeling_llava.py: num_feature_layers)."""
    layers = c["vision_feature_layer"]
    return len(layers) if isinstance(layers, list) else 1


def outer_linear(name: str, inputs: int, outputs: int, bias: bool = False) -> Component:
    return linear(name, inputs, outputs, bias, kind="outer")


def build_two_layer_projector(c: Settings, text: Settings, encoder: Settings) -> list[Component]:
    h, bias = text.hidden, bool(c["multimodal_projector_bias"])
    return [
        outer_linear("linear_1", encoder.hidden * count_feature_layers(c), h, bias),
        outer_linear("linear_2", h, h, bias),
    ]


def build_newline_projector(c: Settings, text: Settings, encoder: Settings) -> list[Component]:
    """Rows of an image's tiles end in a learned token (modeling_llava_next.py: image_newline)."""
    return [*build_two_layer_projector(c, text, encoder), vector("image_newline", text.hidden)]


def build_mistral3_projector(c: Settings, text: Settings, encoder: Settings) -> list[Component]:
    merging = outer_linear("patch_merger.merging_layer", encoder.hidden * c["spatial_merge_size"] ** 2, encoder.hidden)
    return [*build_two_layer_projector(c, text, encoder), merging, vector("norm", encoder.hidden)]


def build_gemma3_projector(c: Settings, text: Settings, encoder: Settings) -> list[Component]:
    # a bare parameter that is multiplied, no Linear module (modeling_gemma3.py: mm_input_projection_weight)
    matrix = linear("mm_input_projection_weight", encoder.hidden, text.hidden, kind="router")
    return [matrix, vector("mm_soft_emb_norm", encoder.hidden)]


def build_one_layer_projector(c: Settings, text: Settings, encoder: Settings) -> list[Component]:
    return [outer_linear("linear", encoder.hidden, text.hidden, True)]


def build_paligemma_projector(c: Settings, text: Settings, encoder: Settings) -> list[Component]:
    return [outer_linear("linear", encoder.hidden, c["projection_dim"], True)]


def build_idefics3_projector(c: Settings, text: Settings, encoder: Settings) -> list[Component]:
    return [outer_linear("modality_projection.proj", encoder.hidden * c["scale_factor"] ** 2, text.hidden)]


def build_internvl_projector(c: Settings, text: Settings, encoder: Settings) -> list[Component]:
    wide, h = encoder.hidden * int(1 / c["downsample_ratio"]) ** 2, text.hidden
    return [*norm("layer_norm", wide, 2), outer_linear("linear_1", wide, h, True), outer_linear("linear_2", h, h, True)]


def build_no_projector(c: Settings, text: Settings, encoder: Settings) -> list[Component]:
    """The encoder's merger ends in the text model's width."""
    return []


def build_clip_projections(c: Settings, text: Settings, encoder: Settings) -> list[Component]:
    width = c["projection_dim"]
    return [
        outer_linear("visual", encoder.hidden, width),
        outer_linear("text", text.hidden, width),
        vector("logit_scale", 1),
    ]


FAMILIES: dict[str, Family] = {
    "llava": multimodal_family(build_two_layer_projector, either=True),
    "llava_next": multimodal_family(build_newline_projector),
    "llava_onevision": multimodal_family(build_newline_projector, either=True),
    "mistral3": multimodal_family(build_mistral3_projector),
    "paligemma": multimodal_family(build_paligemma_projector),
    # AutoModelForCausalLM loads Gemma 3 with its encoder, so it is a decoder by ModelSpec's rule
    "gemma3": multimodal_family(build_gemma3_projector, kind="decoder"),
    "idefics3": multimodal_family(build_idefics3_projector),
    "smolvlm": multimodal_family(build_idefics3_projector),
    "internvl": multimodal_family(build_internvl_projector),
    "qwen2_vl": multimodal_family(build_no_projector, either=True)._replace(rearrange=nest_text_config),
    "qwen2_5_vl": multimodal_family(build_no_projector, either=True)._replace(rearrange=nest_text_config),
    "qwen3_vl": multimodal_family(build_no_projector),
    "qwen3_vl_moe": multimodal_family(build_no_projector),
    "qwen2_audio": multimodal_family(
        build_one_layer_projector, encoder="audio_config", stack="audio", head=output_layer(tied=False)
    ),
    # text_config_dict, of old files, would overwrite text_config (configuration_clip.py)
    "clip": multimodal_family(build_clip_projections, head=build_nothing)._replace(
        refuses=("text_config_dict", "vision_config_dict")
    ),
    "siglip": multimodal_family(lambda c, text, encoder: [vector("logit_scale", 1, 2)], head=build_nothing),
}
