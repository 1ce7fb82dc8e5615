"""From a parsed config.json to a ``ModelSpec``, by the tables of families alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from generator.model.builders import Family
from generator.model.components import Component, Mixer, Scores, State, Weights
from generator.model.families import SAME_AS, find_family
from generator.model.guard import check_sizes_given, check_understood
from generator.model.routers import WITH_LOSS
from generator.model.settings import Settings
from generator.model.spec import Attended, ModelSpec, NeedsMetaDevice
from generator.model.stored_formats import has_stored_offsets, read_stored_bytes, read_stored_format, read_stored_group
from generator.model.vision import count_patches

MULTIPLIED = ("linear", "router", "expert", "head", "tied")
"""kinds of weights that a token is multiplied with: a tied output layer has no parameters of its own, but its work"""
ENDS = ("embedding", "head", "tied", "outer")


def describe(config: Mapping, name: str) -> ModelSpec:
    """Exact sizes of the model that Transformers builds from ``config``, a parsed config.json; ``name`` is the spec's.

    Raises ``NeedsMetaDevice`` for a type without a row or a config that holds what its row does not understand,
    ``MissingSize`` (a KeyError) naming the size that is left out. A value of another type or length than Transformers
    takes ends in the TypeError or ValueError of the arithmetic: ``generator.sources`` makes a message of these.
    """
    family, settings = read_family(config)
    components, kinds = build_components(family, settings)
    weights = [component for component in components if isinstance(component, Weights)]
    states = [component for component in components if isinstance(component, State)]
    text = read_text_settings(family, settings)
    own = [w for w in weights if not w.stack]
    scores = [s for s in components if isinstance(s, Scores) and not s.stack]
    params = sum(w.params for w in weights)
    routed = next((w for w in own if w.kind == "expert" and w.role == "down"), None)
    main = max(scores, key=lambda s: s.layers, default=Scores(0, 0, 0, 0, 0))
    return ModelSpec(
        name=name,
        model_type=settings.values["model_type"],
        architecture=(settings.values.get("architectures") or [None])[0],
        kind=family.kind,
        layers=family.depth(text),
        hidden=family.width(text),
        heads=main.heads,
        kv_heads=main.kv_heads,
        head_dim=(main.key_dim + main.value_dim) // 2,
        ffn=max((w.inputs for w in own if w.role == "down" and w.kind == "linear"), default=0),
        vocab=text.size("vocab"),
        gated=any(w.role == "gate" for w in own),
        tied_embeddings=is_tied(own, text),
        experts=text.size("experts") if routed else 0,
        experts_per_token=text.size("experts_per_token") if routed else 0,
        expert_ffn=routed.inputs if routed else 0,
        shared_expert_ffn=next((w.inputs for w in own if w.role == "shared"), 0),
        router_loss=routed is not None and settings.values["model_type"] in WITH_LOSS,
        sliding_window=find_widest_window(scores),
        max_positions=text.positions,
        row_positions=count_row_positions(family, settings, weights),
        layer_kinds=summarize_layer_kinds(kinds, family.moe_layers(text)),
        params=params,
        active_params=params - round(sum(w.params * (1 - w.share) for w in own if w.kind == "expert")),
        embedding_params=sum(w.params for w in own if w.kind in ENDS or w.name == "embeddings.norm"),
        linear_params=sum(w.inputs * w.outputs * w.count for w in weights if w.kind in ("linear", "expert")),
        flops_per_token=2.0 * sum(w.inputs * w.outputs * w.count * w.share for w in own if w.kind in MULTIPLIED),
        attention=tuple(
            Attended(s.layers, s.heads * (s.key_dim + s.value_dim) // 2, s.cached, s.window, s.held, s.holds_all)
            for s in scores
        ),
        mixers=tuple(c for c in components if isinstance(c, Mixer)),
        state_elements=sum(state.layers * state.elements for state in states),
        dtype=read_dtype(settings, text),
        quantization=(settings.values.get("quantization_config") or {}).get("quant_method"),
        stored_format=read_stored_format(settings.values.get("quantization_config") or {}),
        stored_bytes=read_stored_bytes(settings.values.get("quantization_config") or {}),
        stored_offsets=has_stored_offsets(settings.values.get("quantization_config") or {}),
        stored_group=read_stored_group(settings.values.get("quantization_config") or {}),
    )


def count_row_positions(family: Family, settings: Settings, weights: list[Weights]) -> int | None:
    """Of one image or one window of sound, where every layer has the same number."""
    if family.kind == "encoder-decoder":
        return settings["max_source_positions"] if settings.has("num_mel_bins") else None
    if family.kind != "vision" or settings["depths"] or settings["patch_size"] is None:
        return None
    of_position = [w.count for w in weights if w.name == "position_embeddings"]
    return (of_position[0] if of_position else count_patches(settings) + 1) + (settings["num_register_tokens"] or 0)


def read_family(config: Mapping) -> tuple[Family, Settings]:
    """The row of the config's type, and the config with the defaults of that type."""
    given = config.get("model_type")
    if not isinstance(given, str):
        raise NeedsMetaDevice(f"{given!r} is not in perfgen's tables")
    model_type = SAME_AS.get(given, given)
    family = find_family(model_type)
    if family is None:
        raise NeedsMetaDevice(f"{given!r} is not in perfgen's tables")
    return family, Settings(family.rearrange(config), model_type)


def read_text_settings(family: Family, settings: Settings) -> Settings:
    """Those of the text model inside another, else the whole."""
    return settings.nested(family.text) if family.text else settings


def build_components(family: Family, settings: Settings) -> tuple[list[Component], list[str]]:
    """All that the model is made of, equal components together, and the kind of each text layer."""
    # a multimodal config may leave its text model to the class (LLaVA's published ones do), other kinds name sizes
    # otherwise
    if family.text is None and family.kind in ("decoder", "encoder"):
        check_sizes_given(settings)
    components = family.body(settings) + family.head(settings)
    kinds = family.kinds(read_text_settings(family, settings))
    check_understood(settings, family.refuses)
    return merge_equal(components), kinds


def merge_equal(components: Iterable[Component]) -> list[Component]:
    """Equal components together, in the order in which they first come; none that stands zero times."""
    counts: Counter[Component] = Counter()
    for component in components:
        if isinstance(component, Weights):
            counts[component._replace(count=1)] += component.count
        else:
            counts[component._replace(layers=1)] += component.layers
    return [
        component._replace(count=n) if isinstance(component, Weights) else component._replace(layers=n)
        for component, n in counts.items()
        if n
    ]


def read_dtype(settings: Settings, text: Settings) -> str | None:
    """The dtype of the stored weights; Transformers 4 wrote ``torch_dtype``, and some only into the text model's
    config."""
    given = (source.values.get(key) for source in (settings, text) for key in ("dtype", "torch_dtype"))
    return next((dtype for dtype in given if dtype), None)


def is_tied(weights: list[Weights], text: Settings) -> bool:
    """By the output layer, and by the config where the model has none."""
    kinds = {w.kind for w in weights}
    return "tied" in kinds if kinds & {"head", "tied"} else bool(text["tie_word_embeddings"])


def find_widest_window(scores: list[Scores]) -> int | None:
    """In tokens, where every attention has one: one layer that sees everything needs keys of everything."""
    windows = [s.window for s in scores]
    return max((n for n in windows if n), default=None) if all(windows) else None


def summarize_layer_kinds(kinds: list[str], moe_layers: list[bool]) -> tuple[tuple[str, int], ...]:
    """How many layers are of each kind, those with experts as "moe" beside; nothing where all layers are alike, attend
    to everything and have the same kind of feed-forward."""
    counts = Counter(kinds)
    if counts.keys() <= {"full_attention"} and len(set(moe_layers)) < 2:
        return ()
    return (*counts.items(), *([("moe", sum(moe_layers))] if any(moe_layers) and "moe" not in counts else []))
