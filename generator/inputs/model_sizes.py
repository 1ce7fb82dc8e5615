"""A model's sizes from its config, by the tables or counted on the meta device."""

from __future__ import annotations

import json
from dataclasses import replace

from generator.errors import SourceError
from generator.inputs.config_checks import COUNTS, find_implausible
from generator.inputs.meta_device import describe_on_meta
from generator.inputs.model_source import ModelSource
from generator.model import ModelSpec, NeedsMetaDevice, describe


def read_spec(source: ModelSource) -> ModelSpec:
    """Sizes from the config alone; for an architecture that the tables do not know, counted by Transformers itself.

    Raises ``SourceError`` for whatever a config can say wrong.
    """
    config = json.loads(source.config)
    try:
        spec = size_model(config, source.name)
    except KeyError as error:
        raise SourceError(f"cannot size {source.path}: {error.args[0]}", SIZE_HINT) from error
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise SourceError(f"cannot size {source.path}: {error}", SIZE_HINT) from error
    for wrong in find_implausible(spec):
        raise SourceError(f"cannot size {source.path}: {wrong}", SIZE_HINT)
    return spec


SIZE_HINT = "a config.json with the usual size fields is needed"


def size_model(config: dict, name: str) -> ModelSpec:
    inner = config.get("text_config", config)
    by_layer = sorted(key for key in COUNTS if isinstance(inner.get(key), list))
    if by_layer:
        return describe_on_meta(config, name, f"{', '.join(by_layer)} differ by layer")
    try:
        return replace(describe(config, name), notes=())
    except NeedsMetaDevice as unknown:
        return describe_on_meta(config, name, str(unknown))
