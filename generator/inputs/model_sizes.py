"""A model's sizes from its config, by the tables or counted on the meta device."""

from __future__ import annotations

import json
from dataclasses import replace

from generator.errors import SourceError
from generator.inputs.config_checks import COUNTS, find_implausible
from generator.inputs.meta_device import describe_on_meta
from generator.inputs.model_source import ModelSource
from generator.model import ModelSpec, NeedsMetaDevice, describe
from generator.model.families import SAME_AS
from generator.model.rotary import describe_stretching, find_alike_positions, find_rotation, find_stretched_positions
from generator.model.settings import load_defaults


def read_spec(source: ModelSource) -> ModelSpec:
    """Sizes from the config alone; for an architecture that the tables do not know, counted by Transformers itself.

    Raises ``SourceError`` for whatever a config can say wrong.
    """
    config = json.loads(source.config)
    refuse_own_type(source, config)
    try:
        spec = size_model(config, source.name)
    except KeyError as error:
        raise SourceError(f"cannot size {source.path}: {error.args[0]}", SIZE_HINT) from error
    except (TypeError, ValueError, AttributeError, ArithmeticError, IndexError) as error:
        raise SourceError(f"cannot size {source.path}: {error}", SIZE_HINT) from error
    for wrong in find_implausible(spec):
        raise SourceError(f"cannot size {source.path}: {wrong}", SIZE_HINT)
    refuse_without_attention(source, spec)
    own_code = (describe_own_code(config),) if config.get("auto_map") else ()
    return replace(spec, notes=(*spec.notes, *own_code, *note_recurrent_layers(spec)))


def refuse_without_attention(source: ModelSource, spec: ModelSpec) -> None:
    """Raises ``SourceError``, with what can be counted, for a model of which no layer attends."""
    if spec.attended:
        return
    raise SourceError(
        f"{source.path}: no layer of {spec.model_type} attends, each keeps a recurrent state: {spec.params:,} parameters, "
        f"{spec.state_elements:,} elements of state a sequence, {spec.flops_per_token / 1e9:.3g} GFLOP a token. It is not "
        "planned: what its scan keeps and takes is not in the cost model",
        "give a model with attention layers",
    )


def note_recurrent_layers(spec: ModelSpec) -> tuple[str, ...]:
    """Transformers runs scans by PyTorch operators where mamba-ssm and causal-conv1d are not installed, as in a project."""
    layers = sum(count for kind, count in spec.layer_kinds if kind in ("linear_attention", "hybrid"))
    if not layers or not spec.state_elements:
        return ()
    text = (
        f"{layers} of its {spec.layers} layers keep a recurrent state: their products and what their scan keeps are in the estimates, "
        "and the time of the scan is not (Transformers runs it without mamba-ssm, slower): smoke-run first"
    )
    return (text,)


def describe_own_code(config: dict) -> str:
    return (
        f"its repository brings Python code of its own (auto_map), which is not run: sizes, plan and project are those of "
        f"Transformers' own {config['model_type']} (trust_remote_code is False)"
    )


def refuse_own_type(source: ModelSource, config: dict) -> None:
    """Raises ``SourceError`` for a type that the repository's own code brings: Transformers does not know it."""
    model_type = config["model_type"]
    if config.get("auto_map") and find_own_class(model_type) is False:
        raise SourceError(
            f"{source.path}: {model_type!r} is known to its own Python code (auto_map) alone, which perfgen never runs, "
            "and not to Transformers",
            "use a model that Transformers itself knows",
        )


def find_own_class(model_type: str) -> bool | None:
    """Whether Transformers has the type; ``None`` where nobody can tell, without Transformers."""
    if model_type in load_defaults()["types"]:
        return True
    if model_type in SAME_AS:
        return False
    try:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    except ImportError:
        return None
    return model_type in CONFIG_MAPPING


SIZE_HINT = "a config.json with the usual size fields is needed"


def size_model(config: dict, name: str) -> ModelSpec:
    positions = find_stretched_positions(config)
    rotation = {"rotation": find_rotation(config), "alike_positions": find_alike_positions(config)}
    spec = replace(count_model(config, name), **rotation)
    if not positions:
        return spec
    note = f"YaRN would reach {positions:,} positions, and config.json says {spec.max_positions:,}: {describe_stretching(positions)}"
    return replace(spec, stretched_positions=positions, notes=(*spec.notes, note))


def count_model(config: dict, name: str) -> ModelSpec:
    inner = config.get("text_config") or config
    by_layer = sorted(key for key in COUNTS if isinstance(inner.get(key), list))
    if by_layer:
        return describe_on_meta(config, name, f"{', '.join(by_layer)} differ by layer")
    try:
        return describe(config, name)
    except NeedsMetaDevice as unknown:
        return describe_on_meta(config, name, str(unknown))
