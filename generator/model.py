"""What a model is, from its ``config.json`` alone: no weights, no torch (``meta_device`` counts what the tables do not know).

``describe(config)`` turns the parsed config into a ``ModelSpec``. Reading files is ``generator.sources``' work.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """The sizes that cost formulas need. Counts are exact for ``basis == "config"`` and ``"meta-device"``.

    ``ffn`` is the width of one dense feed-forward block, ``gated`` whether it has a gate (three matrices, not two);
    ``experts`` = 0 for a dense model; ``layer_kinds`` counts blocks by kind when they differ (full, sliding, linear, moe…).
    ``dtype`` is the stored dtype that the config names, ``quantization`` the checkpoint's own method, ``None`` for neither.
    """

    name: str
    model_type: str
    architecture: str | None
    kind: str
    """decoder, encoder, encoder-decoder, vision, audio, multimodal"""
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    gated: bool = True
    tied_embeddings: bool = False
    experts: int = 0
    experts_per_token: int = 0
    expert_ffn: int = 0
    shared_expert_ffn: int = 0
    sliding_window: int | None = None
    max_positions: int | None = None
    layer_kinds: tuple[tuple[str, int], ...] = ()
    params: int = 0
    active_params: int = 0
    embedding_params: int = 0
    linear_params: int = 0
    """parameters of Linear layers inside the blocks: what bitsandbytes quantizes and "all-linear" LoRA adapts"""
    dtype: str | None = None
    quantization: str | None = None
    basis: str = "config"
    notes: tuple[str, ...] = ()


class NeedsMetaDevice(Exception):
    """The tables below do not know the architecture: Transformers itself must count it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How the blocks of a model type are built; one row serves every model of the type.

    ``attention_bias``: which projections have a bias ("", "qkv", "qkvo" or the config key that says so).
    ``mlp_bias`` likewise. ``norm``: parameters a norm has per channel (1 RMSNorm, 2 LayerNorm with bias).
    ``norms``: norms in a block. ``final_norm``: after the last block. ``positions``: learned positions beside the vocabulary.
    ``qk_norm``: per-head norms of queries and keys.
    """

    gated: bool = True
    attention_bias: str = ""
    mlp_bias: str = ""
    norm: int = 1
    norms: int = 2
    final_norm: bool = True
    positions: bool = False
    qk_norm: bool = False
    kind: str = "decoder"
    tied: bool = False
    """what an absent tie_word_embeddings means"""


LLAMA = Family(attention_bias="attention_bias", mlp_bias="mlp_bias")
FAMILIES = {
    "llama": LLAMA,
    "mistral": Family(),
    "qwen2": Family(attention_bias="qkv"),
    "qwen3": Family(attention_bias="attention_bias", qk_norm=True),
    "mixtral": Family(),
    "qwen3_moe": Family(attention_bias="attention_bias", qk_norm=True),
    "gemma": Family(attention_bias="attention_bias", tied=True),
    "granite": LLAMA,
    "smollm3": Family(attention_bias="attention_bias", mlp_bias="mlp_bias", tied=True),
    "gpt2": Family(gated=False, attention_bias="qkvo", mlp_bias="yes", norm=2, positions=True, tied=True),
    "bert": Family(
        gated=False,
        attention_bias="qkvo",
        mlp_bias="yes",
        norm=2,
        final_norm=False,
        positions=True,
        kind="encoder",
        tied=True,
    ),
}
"""From the modeling files of Transformers 5.23; each row is compared with the meta-device count in tests/model."""


def describe(config, name: str) -> ModelSpec:
    """Exact sizes from a parsed config.json. Raises ``NeedsMetaDevice`` for a type without a row, KeyError for a missing size."""
    config = config.get("text_config", config)
    family = FAMILIES.get(config.get("model_type"))
    if family is None:
        raise NeedsMetaDevice(f"{config.get('model_type')!r} is not in perfgen's tables")
    hidden, layers = first(config, "hidden_size", "n_embd"), first(config, "num_hidden_layers", "n_layer")
    heads, vocab = first(config, "num_attention_heads", "n_head"), first(config, "vocab_size")
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or hidden // heads
    ffn = config.get("intermediate_size") or config.get("n_inner") or 4 * hidden
    experts = config.get("num_local_experts") or config.get("num_experts") or 0
    expert_ffn = config.get("moe_intermediate_size") or (ffn if experts else 0)
    query, key = heads * head_dim, kv_heads * head_dim
    attention = hidden * (query + 2 * key) + query * hidden
    mlp = (3 if family.gated else 2) * hidden * (expert_ffn if experts else ffn)
    blocks = max(experts, 1) * mlp + (experts * hidden if experts else 0)
    small = biases(family, config, hidden, query, key, ffn) + family.norms * family.norm * hidden
    small += 2 * head_dim if family.qk_norm else 0
    tied = bool(config.get("tie_word_embeddings", family.tied))
    embedding = vocab * hidden
    positions = config.get("max_position_embeddings") or config.get("n_positions")
    outside = embedding * (1 if tied or family.kind == "encoder" else 2)
    outside += (positions * hidden if family.positions else 0) + (family.norm * hidden if family.final_norm else 0)
    if family.kind == "encoder":  # token types and the norm of the embeddings, and the pooler of the bare model
        outside += config.get("type_vocab_size", 2) * hidden + 2 * hidden + hidden * hidden + hidden
    linear = layers * (attention + max(experts, 1) * mlp)
    params = layers * (attention + blocks + small) + outside
    idle = layers * (experts - first(config, "num_experts_per_tok")) * mlp if experts else 0
    return ModelSpec(
        name=name,
        model_type=config["model_type"],
        architecture=(config.get("architectures") or [None])[0],
        kind=family.kind,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=0 if experts else ffn,
        vocab=vocab,
        gated=family.gated,
        tied_embeddings=tied,
        experts=experts,
        experts_per_token=config.get("num_experts_per_tok") or 0 if experts else 0,
        expert_ffn=expert_ffn,
        sliding_window=config.get("sliding_window") if config.get("use_sliding_window", True) else None,
        max_positions=positions,
        params=params,
        active_params=params - idle,
        embedding_params=outside - (family.norm * hidden if family.final_norm else 0),
        linear_params=linear,
        dtype=config.get("dtype") or config.get("torch_dtype"),
        quantization=(config.get("quantization_config") or {}).get("quant_method"),
    )


def first(config, *keys: str) -> int:
    """The first key that the config has. KeyError names them all."""
    for key in keys:
        if config.get(key) is not None:
            return config[key]
    raise KeyError(f"the config has none of {', '.join(keys)}")


def biases(family: Family, config, hidden: int, query: int, key: int, ffn: int) -> int:
    said = family.attention_bias
    on = said if said in ("", "qkv", "qkvo") else ("qkvo" if config.get(said, False) else "")
    count = {"": 0, "qkv": query + 2 * key, "qkvo": query + 2 * key + hidden}[on]
    mlp = family.mlp_bias
    if mlp == "yes" or (mlp and config.get(mlp, False)):
        count += ffn * (2 if family.gated else 1) + hidden
    return count
