"""The table of families: the row of a model type says what it is built of. Only the module that holds the row is
loaded."""

from __future__ import annotations

from importlib import import_module

from generator.model.builders import Family
from generator.model.settings import load_defaults

GROUPS = ("decoders", "moe", "hybrids", "encoders", "seq2seq", "vision", "hierarchical_vision", "speech", "multimodal")
"""modules of this package, each with a table ``FAMILIES``; ``defaults.json`` tells which holds a type"""
SAME_AS = {"kimi_k2": "deepseek_v3"}
"""types that only a repository's own code registers, and the class of Transformers that its ``architectures`` names"""


def load_families(group: str) -> dict[str, Family]:
    """The table of one module of ``GROUPS``, by model type."""
    return import_module(f"generator.model.{group}").FAMILIES


def find_family(model_type: str) -> Family | None:
    """The type's row; ``None`` where no table has one (types that stand only inside others have none)."""
    group = load_defaults()["types"].get(model_type, {}).get("group")
    return load_families(group)[model_type] if group else None
