"""The table of families: a model type's row says what it is built of. Only the part that holds the row is loaded."""

from __future__ import annotations

from importlib import import_module

from generator.model.settings import known
from generator.model.stacks import Row

GROUPS = ("decoders", "sparse", "hybrids", "encoders", "seq2seq", "vision", "pyramids", "speech", "multimodal")
"""modules of this package, each with a table ``ROWS``; ``defaults.json`` tells which holds a type"""
SAME_AS = {"kimi_k2": "deepseek_v3"}
"""types that only a repository's own code registers, and the class of Transformers that its ``architectures`` names"""


def rows(group: str) -> dict[str, Row]:
    return import_module(f"generator.model.{group}").ROWS


def row_of(model_type: str) -> Row | None:
    """The type's row; ``None`` where no table has one (types that stand only inside others have none)."""
    group = known()["types"].get(model_type, {}).get("group")
    return rows(group)[model_type] if group else None
