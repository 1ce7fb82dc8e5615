"""Writes ``generator/model/defaults.json`` from the config classes of the installed Transformers."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

TARGET = Path(__file__).resolve().parents[2] / "generator" / "model" / "defaults.json"
NO_SIZE = ("_token_id", "_token_index", "_act", "_ids", "_path", "_activation", "_function", "summary_type", "init_std")
PARTS = ("text_config", "vision_config", "audio_config", "encoder", "decoder", "attn_config", "ffn_config")


def sizes(values: dict) -> dict:
    """What may be a size or a switch: no text but short words, no fraction, no token number."""
    kept = {}
    for key, value in values.items():
        if key.endswith(NO_SIZE) or key in SHARED or isinstance(value, float):
            continue
        if value is None or isinstance(value, (bool, int)) or (isinstance(value, str) and len(value) < 30):
            kept[key] = value
        elif isinstance(value, (list, tuple)) and all(isinstance(item, (int, str)) for item in value):
            kept[key] = list(value)
    return kept


def entry_of(model_type: str) -> dict:
    """Raw defaults (before what the class derives from them), aliases, and the nested configs it makes."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    cls = CONFIG_MAPPING[model_type]
    raw = {f.name: f.default for f in dataclasses.fields(cls) if f.default is not dataclasses.MISSING}
    raw |= {
        f.name: f.default_factory() for f in dataclasses.fields(cls) if f.default_factory is not dataclasses.MISSING
    }
    entry: dict = {"defaults": {k: v for k, v in sizes(raw).items() if k not in cls.sub_configs}}
    if cls.attribute_map:
        entry["aliases"] = dict(sorted(cls.attribute_map.items()))
    nested = {}
    if cls.sub_configs:
        made = cls()
        for key in cls.sub_configs:
            part = getattr(made, key)
            if part is not None:
                told = sizes(part.to_dict()) | {"model_type": part.model_type}
                nested[key] = {"type": part.model_type, "told": told}
    if nested:
        entry["nested"] = nested
    return entry


def from_transformers() -> dict:
    import transformers

    from generator.model.families import FAMILIES

    global SHARED
    base = {f.name for f in dataclasses.fields(transformers.PretrainedConfig)}
    SHARED = base | {"use_cache", "model_type", "transformers_version"}
    types = {name: entry_of(name) for name in sorted(FAMILIES)}
    return {"source": f"the config classes of transformers {transformers.__version__}", "types": types}


SHARED: set[str] = set()

if __name__ == "__main__":
    TARGET.write_text(json.dumps(from_transformers(), indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
    print(TARGET, TARGET.stat().st_size, "bytes")
