"""The values of a config.json, and what Transformers takes for those it leaves out.

``defaults.json`` holds, for each model type, the defaults and the aliases of its config class in the Transformers that
its ``source`` names; ``python tests/model/defaults.py`` writes it again, and a test compares it with the installed
ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

SIZES = {
    "layers": ("num_hidden_layers", "num_layers", "decoder_layers", "depth"),
    # n_embed first: where a BLOOM config has it too, it replaces hidden_size (configuration_bloom.py: __post_init__)
    "hidden": ("n_embed", "hidden_size", "d_model", "embed_dim", "dim"),
    "heads": ("num_attention_heads", "num_heads", "attention_heads", "encoder_attention_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "head_dim": ("head_dim", "attention_head_dim", "d_kv"),
    "ffn": (
        "intermediate_size",
        "ffn_dim",
        "n_inner",
        "d_ff",
        "hidden_dim",
        "ffn_hidden_size",
        "dff",
        "encoder_ffn_dim",
    ),
    "vocab": ("vocab_size",),
    "experts": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    "experts_per_token": ("num_experts_per_tok", "moe_k", "moe_topk", "num_experts_per_token", "top_k_experts"),
    "expert_ffn": ("moe_intermediate_size",),
    "positions": ("max_position_embeddings", "n_positions", "max_seq_len", "context_length", "max_target_positions"),
}
"""The names that sizes go by, most usual first."""
ESSENTIAL = ("layers", "hidden", "heads", "vocab")
"""A default may stand for what a config leaves out, but not for how large the model is."""


class MissingSize(KeyError):
    """The config names no value for a size that no default can stand for."""


@cache
def load_defaults() -> dict:
    """``defaults.json``: source, common (fields of every config class that change no count) and types."""
    return json.loads((Path(__file__).parent / "defaults.json").read_text(encoding="utf-8"))


class Settings:
    """A config with the defaults of its type. ``settings[key]`` is ``None`` where neither has a value.

    A key that the type's classes do not read does not count. Without a type, every key counts. Sizes are in elements
    (``hidden``, ``ffn``, ``head_dim``), tokens (``positions``) or plain counts; they raise ``MissingSize`` where
    neither the config nor a default has one.
    """

    __slots__ = ("_nested", "_spellings", "added", "aliases", "defaults", "entry", "type", "values")

    def __init__(self, values: Mapping, model_type: str, added: frozenset[str] = frozenset()):
        self.entry = load_defaults()["types"].get(model_type, {})
        self.values, self.type = values, model_type
        self.defaults, self.aliases = self.entry.get("defaults", {}), self.entry.get("aliases", {})
        self.added = added
        """keys that perfgen set, not the config"""
        self._nested: dict[str, Settings] = {}
        self._spellings: dict[str, list[str]] = {}
        for alias, own in self.aliases.items():
            self._spellings.setdefault(own, []).append(alias)

    def spellings(self, key: str) -> tuple[str, ...]:
        """Every alias of a key, then the class's own name.

        Aliases first: a config class sets its fields, then what is left over, and an alias is left over
        (configuration_utils.py: ``__post_init__``; ``__setattr__`` follows ``attribute_map``), so it overwrites the
        field.
        """
        own = self.aliases.get(key, key)
        return (*self._spellings.get(own, ()), own)

    def __getitem__(self, key: str):
        names = self.spellings(key)
        default = next((self.defaults[name] for name in names if name in self.defaults), None)
        for name in names:
            if name in self.values and self.is_read(name):
                value = self.values[name]
                if value is None and default is not None and not any(name in self.nullable for name in names):
                    raise MissingSize(f"{name} is null")
                return value
        return default

    def is_read(self, name: str) -> bool:
        """Whether the type's config or model class reads the key."""
        if not self.entry or name == "tie_word_embeddings" or name in self.added or name in self._spellings:
            return True
        return any(name in self.entry.get(part, ()) for part in ("defaults", "aliases", "nested", "read"))

    @property
    def nullable(self) -> list[str]:
        """Keys that may be null in the config though their default is something else."""
        return self.entry.get("nullable", [])

    def has(self, key: str) -> bool:
        """Whether the config itself has the key, by whichever of its names."""
        return any(name in self.values and self.is_read(name) for name in self.spellings(key))

    def replace(self, **changes) -> Settings:
        """The settings with other values, as ``dataclasses.replace``."""
        own = {self.aliases.get(key, key): value for key, value in changes.items()}
        dropped = {name for key in own for name in self.spellings(key)}
        kept = {k: v for k, v in self.values.items() if k not in dropped}
        return Settings(kept | own, self.type, self.added | own.keys())

    def nested(self, key: str) -> Settings:
        """A nested config (text_config, vision_config…), as given or by default. Its own ``model_type`` counts only
        where the class leaves the type open (llava takes any text model, qwen2_vl only its own)."""
        if key not in self._nested:
            default = self.entry.get("nested", {}).get(key, {})
            values = self.values.get(key)
            model_type = default.get("type", "")
            if values is not None and default.get("open") and values.get("model_type"):
                model_type = values["model_type"]
            self._nested[key] = Settings(default.get("values", {}) if values is None else values, model_type)
        return self._nested[key]

    def size(self, name: str, default: int = 0) -> int:
        """A size of ``SIZES`` by any of its names, ``default`` where there is none."""
        return next((value for key in SIZES[name] if (value := self[key]) is not None), default)

    @property
    def positions(self) -> int | None:
        """The longest sequence in tokens; ``None`` for no limit, as some configs say by null."""
        given = [self.values[key] for size in SIZES["positions"] for key in self.spellings(size) if key in self.values]
        return given[0] or None if given else self.size("positions") or None

    def require(self, name: str) -> int:
        """A size of ``SIZES``; raises ``MissingSize`` where there is none or it is 0."""
        value = self.size(name)
        if not value:
            raise MissingSize(f"the config has none of {', '.join(SIZES[name])}")
        return value

    @property
    def hidden(self) -> int:
        return self.require("hidden")

    @property
    def layers(self) -> int:
        return self.require("layers")

    @property
    def heads(self) -> int:
        return self.require("heads")

    @property
    def kv_heads(self) -> int:
        # 0 and null mean as many as queries (multi-head attention), as in configuration_llama.py: __post_init__
        return self.size("kv_heads") or self.heads

    @property
    def head_dim(self) -> int:
        size = self.size("head_dim", -1)
        if size == 0:
            raise MissingSize("head_dim is 0")
        return size if size > 0 else self.hidden // self.heads

    @property
    def ffn(self) -> int:
        # 4 x hidden where the config is silent: GPT-2's n_inner null means that (modeling_gpt2.py: inner_dim)
        return self.size("ffn", 4 * self.hidden)

    @property
    def vocab(self) -> int:
        return self.require("vocab")

    def holds(self, rule: bool | str) -> bool:
        """A rule is true, false, or the key of the config that decides."""
        return rule if isinstance(rule, bool) else bool(self[rule])
