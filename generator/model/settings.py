"""The values of a config.json, and what Transformers takes for those it does not say.

``defaults.json`` holds, for each model type, the defaults and the aliases of its config class in the Transformers that
``source`` names; ``python tests/model/defaults.py`` writes it again, and a test compares it with the installed ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

SIZES = {
    "layers": ("num_hidden_layers", "decoder_layers", "num_layers", "depth"),
    "hidden": ("hidden_size", "d_model", "embed_dim"),
    "heads": ("num_attention_heads", "num_heads", "attention_heads", "encoder_attention_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "head_dim": ("head_dim", "d_kv"),
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
    "experts_per_token": ("num_experts_per_tok", "moe_k", "num_experts_per_token", "top_k_experts"),
    "expert_ffn": ("moe_intermediate_size",),
    "positions": ("max_position_embeddings", "n_positions", "max_seq_len", "context_length", "max_target_positions"),
}
"""The names that sizes go by, most usual first."""


class MissingSize(KeyError):
    """The config says nothing of a size that no default can stand for."""


@cache
def known() -> dict:
    """``defaults.json``: types → {defaults, aliases, nested, told}."""
    return json.loads((Path(__file__).parent / "defaults.json").read_text(encoding="utf-8"))["types"]


class Settings:
    """A config with the defaults of its type. ``settings[key]`` is ``None`` where neither says anything."""

    __slots__ = ("_back", "aliases", "defaults", "nested", "told", "type")

    def __init__(self, told: Mapping, model_type: str):
        entry = known().get(model_type, {})
        self.told, self.type = told, model_type
        self.defaults, self.aliases = entry.get("defaults", {}), entry.get("aliases", {})
        self.nested = entry.get("nested", {})
        self._back = {own: alias for alias, own in self.aliases.items()}

    def __getitem__(self, key: str):
        own = self.aliases.get(key, key)
        for name in (own, key, self._back.get(own)):
            if name is not None and name in self.told:
                return self.told[name]
        return self.defaults.get(own)

    def says(self, key: str) -> bool:
        """Whether the config itself has the key, by whichever of its names."""
        own = self.aliases.get(key, key)
        return any(name in self.told for name in (own, key, self._back.get(own)))

    def size(self, what: str) -> int:
        """A size by any of its usual names, 0 where there is none."""
        for key in SIZES[what]:
            value = self[key]
            if value is not None:
                return value
        return 0

    def need(self, what: str) -> int:
        value = self.size(what)
        if not value:
            raise MissingSize(f"the config has none of {', '.join(SIZES[what])}")
        return value

    def inner(self, key: str) -> Settings:
        """A nested config (text_config, vision_config…), whole or by default."""
        default = self.nested.get(key, {})
        told = self.told.get(key)
        told = default.get("told", {}) if told is None else told
        return Settings(told, told.get("model_type") or default.get("type", ""))

    @property
    def hidden(self) -> int:
        return self.need("hidden")

    @property
    def layers(self) -> int:
        return self.need("layers")

    @property
    def heads(self) -> int:
        return self.need("heads")

    @property
    def kv_heads(self) -> int:
        return self.size("kv_heads") or self.heads

    @property
    def head_dim(self) -> int:
        return self.size("head_dim") or self.hidden // self.heads

    @property
    def ffn(self) -> int:
        return self.size("ffn") or 4 * self.hidden

    @property
    def vocab(self) -> int:
        return self.need("vocab")

    def asks(self, rule: bool | str) -> bool:
        """A rule is true, false, or the key of the config that says so ("!key": that says not so)."""
        if isinstance(rule, bool):
            return rule
        return not self[rule[1:]] if rule.startswith("!") else bool(self[rule])
