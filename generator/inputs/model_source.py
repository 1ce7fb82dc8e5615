"""A model as its files show it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSource:
    """An adapter of a folder of its own. ``form``: lora, dora, rslora, biased, or one of adapter_folder.py's ``UNEVEN``."""

    path: str
    rank: int
    bytes: int
    form: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A model as found: ``kind`` folder, config or hub; ``path`` what the project's config.yaml will say."""

    kind: str
    path: str
    config: str
    """the parsed config.json, as JSON text"""
    has_weights: bool
    has_tokenizer: bool
    has_chat_template: bool | None
    """of its tokenizer; None: seen only when the project runs"""
    tokenizer_problem: str = ""
    """why one that is there is not taken"""
    name: str = ""
    revision: str | None = None
    weight_bytes: int | None = None
    tokenizer: str | None = None
    tokenizer_revision: str | None = None
    """the commit of a tokenizer that has a hub id of its own"""
    """its folder, where ``path`` is not that"""
    adapter: AdapterSource | None = None
    """what was given, where that was no whole model"""
    notes: tuple[str, ...] = ()
