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
    "layers": ("num_hidden_layers", "num_layers", "decoder_layers", "depth"),
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
    """The config says nothing of a size that no default can stand for."""


@cache
def known() -> dict:
    """``defaults.json``: source, common (fields of every config class that change no count) and types."""
    return json.loads((Path(__file__).parent / "defaults.json").read_text(encoding="utf-8"))


class Settings:
    """A config with the defaults of its type. ``settings[key]`` is ``None`` where neither says anything.

    What a config tells that the type's classes do not read does not count. Without a type, all that is told counts.
    """

    __slots__ = ("_back", "_inner", "aliases", "defaults", "entry", "made", "told", "type")

    def __init__(self, told: Mapping, model_type: str, made: frozenset[str] = frozenset()):
        self.entry = known()["types"].get(model_type, {})
        self.told, self.type = told, model_type
        self.defaults, self.aliases = self.entry.get("defaults", {}), self.entry.get("aliases", {})
        self.made = made
        """keys that perfgen set, not the config"""
        self._inner: dict[str, Settings] = {}
        self._back: dict[str, list[str]] = {}
        for alias, own in self.aliases.items():
            self._back.setdefault(own, []).append(alias)

    def names(self, key: str) -> tuple[str, ...]:
        """Every alias of a key, and the class's own name: the order in which Transformers takes them."""
        own = self.aliases.get(key, key)
        return (*self._back.get(own, ()), own)

    def __getitem__(self, key: str):
        names = self.names(key)
        usual = next((self.defaults[name] for name in names if name in self.defaults), None)
        for name in names:
            if name in self.told and self.knows(name):
                value = self.told[name]
                if value is None and usual is not None and not any(known in self.nullable for known in names):
                    raise MissingSize(f"{name} is null")
                return value
        return usual

    def knows(self, name: str) -> bool:
        """Whether the type's config or model class reads the key."""
        if not self.entry or name == "tie_word_embeddings" or name in self.made or name in self._back:
            return True
        return any(name in self.entry.get(part, ()) for part in ("defaults", "aliases", "nested", "read"))

    @property
    def nullable(self) -> list[str]:
        """Keys that the config may say null of though their default is something else."""
        return self.entry.get("nullable", [])

    def says(self, key: str) -> bool:
        """Whether the config itself has the key, by whichever of its names."""
        return any(name in self.told and self.knows(name) for name in self.names(key))

    def but(self, **changes) -> Settings:
        """The settings with other values told."""
        own = {self.aliases.get(key, key): value for key, value in changes.items()}
        gone = {name for key in own for name in self.names(key)}
        kept = {k: v for k, v in self.told.items() if k not in gone}
        return Settings(kept | own, self.type, self.made | own.keys())

    def inner(self, key: str) -> Settings:
        """A nested config (text_config, vision_config…), whole or by default. What it tells of its type counts only
        where the class leaves the type open."""
        if key not in self._inner:
            usual = self.entry.get("nested", {}).get(key, {})
            told = self.told.get(key)
            kind = usual.get("type", "")
            if told is not None and usual.get("open") and told.get("model_type"):
                kind = told["model_type"]
            self._inner[key] = Settings(usual.get("told", {}) if told is None else told, kind)
        return self._inner[key]

    def size(self, what: str, usual: int = 0) -> int:
        """A size by any of its usual names, ``usual`` where there is none."""
        return next((value for key in SIZES[what] if (value := self[key]) is not None), usual)

    @property
    def positions(self) -> int | None:
        """The longest sequence; ``None`` for no limit, as some configs say by null."""
        told = [self.told[name] for key in SIZES["positions"] for name in self.names(key) if name in self.told]
        return told[0] or None if told else self.size("positions") or None

    def need(self, what: str) -> int:
        value = self.size(what)
        if not value:
            raise MissingSize(f"the config has none of {', '.join(SIZES[what])}")
        return value

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
        told = self.size("head_dim", -1)
        if told == 0:
            raise MissingSize("head_dim is 0")
        return told if told > 0 else self.hidden // self.heads

    @property
    def ffn(self) -> int:
        return self.size("ffn", 4 * self.hidden)

    @property
    def vocab(self) -> int:
        return self.need("vocab")

    def asks(self, rule: bool | str) -> bool:
        """A rule is true, false, or the key of the config that says so ("!key": that says not so)."""
        if isinstance(rule, bool):
            return rule
        return not self[rule[1:]] if rule.startswith("!") else bool(self[rule])
