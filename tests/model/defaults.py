"""Writes ``generator/model/defaults.json`` from the config classes of the installed Transformers."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from pathlib import Path

from generator.model.guard import SIZE_LIKE, WITHOUT_EFFECT

TARGET = Path(__file__).resolve().parents[2] / "generator" / "model" / "defaults.json"
NO_SIZE = ("_token_id", "_token_index", "_act", "_ids", "_path", "_activation", "_function", "init_std")
READS = re.compile(r"kwargs\.(?:get|pop|setdefault)\(\s*['\"](\w+)")
"""what a class takes beside its fields"""
USES = re.compile(r"config\.([a-z]\w+)|getattr\(\s*(?:\w+\.)*config,\s*['\"](\w+)")
"""what a model class reads of its config"""
FRACTIONS = {
    "mask_time_prob",
    "mask_feature_prob",
    "layer_scale_init_value",
    "layerscale_value",
    "mlp_ratio",
    "downsample_ratio",
}
FRACTIONS |= {"block_ffn_dim_multiplier"}
"""numbers that decide what is built though they need not be whole"""
ROTARY_ONLY = {
    model_type: {"head_dim"}
    for model_type in ("gpt_neox", "modernbert", "persimmon", "pixtral", "stablelm", "qwen2_vl_text", "qwen2_5_vl_text")
}
"""keys that a model class reads for its rotary embedding alone"""
WITHOUT = ("qwen2_5_vl_vision", "qwen3_vl_vision", "qwen3_vl_moe_vision")
"""classes beside others in one file, which read nothing but their fields"""
NEVER = {"use_cache", "model_type", "transformers_version", "pruned_heads"}
USUAL = {"tie_word_embeddings", "is_decoder", "add_cross_attention", "is_encoder_decoder", "chunk_size_feed_forward"}
"""fields of every config class that may change what is built"""


def read_raw_defaults(cls) -> dict:
    """The defaults of a config class, before what it derives from them."""
    defaults = {}
    for field in dataclasses.fields(cls):
        if field.default is not dataclasses.MISSING:
            defaults[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            defaults[field.name] = field.default_factory()
    return defaults


def keep_sizes(values: dict, beside: set[str]) -> dict:
    """What may be a size or a switch: no text but short words, no fraction but where one multiplies, no token
    number."""
    kept = {}
    for key, value in values.items():
        if key.endswith(NO_SIZE) or key in beside or (isinstance(value, float) and key not in FRACTIONS):
            continue
        if value is None or isinstance(value, (bool, int, float)) or (isinstance(value, str) and len(value) < 30):
            kept[key] = value
        elif isinstance(value, (list, tuple)) and len(value) < 100:
            plain = [list(v) if isinstance(v, tuple) else v for v in value]
            if all(isinstance(item, (int, float, str, list)) for item in plain):
                kept[key] = plain
    return kept


def find_read_keys(cls) -> set[str]:
    """Keys beside the fields that the config class or its models read: each is a size or a switch by its name."""
    from transformers import MODEL_MAPPING

    source = Path(inspect.getfile(cls))
    files = {source.with_name(source.name.replace("configuration_", "modeling_"))}
    models = MODEL_MAPPING.get(cls, ())
    files |= {Path(inspect.getfile(model)) for model in (models if isinstance(models, tuple) else (models,))}
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(files) if path.exists())
    used = {name for pair in USES.findall(text) for name in pair if name}
    popped = set(READS.findall(inspect.getsource(cls)))
    plain = {name for name in used if not hasattr(cls, name) or isinstance(getattr(cls, name), property)}
    plain -= ROTARY_ONLY.get(cls.model_type, set()) | (plain if cls.model_type in WITHOUT else set())
    return popped | {name for name in plain if SIZE_LIKE.search(name) and not WITHOUT_EFFECT.fullmatch(name)}


def find_derived_keys(config) -> set[str]:
    """What a class makes of its fields and writes beside them: read back, it is derived again."""
    return {name for name in config.to_dict() if SIZE_LIKE.search(name) and not WITHOUT_EFFECT.fullmatch(name)}


def build_entry(model_type: str, classes, base: set[str]) -> dict:
    """Raw defaults, aliases, fields that may be null, what is read beside the fields, and the nested configs that the
    class makes by itself."""
    cls = classes[model_type]
    from transformers import PretrainedConfig

    own = set(cls.sub_configs_defaults)
    entry: dict = {"defaults": keep_sizes(read_raw_defaults(cls), base | own)}
    if cls.attribute_map:
        entry["aliases"] = dict(sorted(cls.attribute_map.items()))
    optional = [f.name for f in dataclasses.fields(cls) if "None" in str(f.type)]
    entry["nullable"] = [k for k in optional if entry["defaults"].get(k) is not None]
    entry["read"] = sorted(find_read_keys(cls) - entry["defaults"].keys() - base)
    config = cls()
    entry["derived"] = sorted(
        k for k in find_derived_keys(config) - entry["defaults"].keys() - base - own if k not in entry["read"]
    )
    entry = {key: value for key, value in entry.items() if value or key == "defaults"}
    nested = {}
    for key in sorted(own):
        part = getattr(config, key, None)
        if part is not None:
            default = keep_sizes(read_raw_defaults(type(part)), base)
            values = keep_sizes(part.to_dict(), base)
            values = {k: v for k, v in values.items() if k in default and default[k] is not None and default[k] != v}
            spec = cls.sub_configs_defaults[key]
            free = not issubclass(spec.config_class, PretrainedConfig)
            nested[key] = {"type": part.model_type, "values": values} | ({"open": True} if free else {})
    if nested:
        entry["nested"] = nested
    return entry


def read_transformers() -> dict:
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from generator.model.families import GROUPS, load_families
    from generator.model.multimodal import NESTED

    base = {f.name for f in dataclasses.fields(transformers.PretrainedConfig)} - USUAL | NEVER
    groups = {name: group for group in GROUPS for name in load_families(group)}
    types = {
        name: ({"group": groups[name]} if name in groups else {}) | build_entry(name, CONFIG_MAPPING, base)
        for name in sorted({*groups, *NESTED})
    }
    return {
        "source": f"the config classes of transformers {transformers.__version__}",
        "common": sorted(base),
        "types": types,
    }


def format_defaults(recorded: dict) -> str:
    """One line per type, so that a change of Transformers is a readable difference."""
    lines = [f" {json.dumps(name)}: {json.dumps(entry)}" for name, entry in recorded["types"].items()]
    head = json.dumps({k: v for k, v in recorded.items() if k != "types"})[1:-1]
    return f'{{{head},\n"types": {{\n' + ",\n".join(lines) + "\n}}\n"


if __name__ == "__main__":
    TARGET.write_text(format_defaults(read_transformers()), encoding="utf-8")
    print(TARGET, TARGET.stat().st_size, "bytes")
