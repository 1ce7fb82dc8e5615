"""What a model is, from its ``config.json`` alone: no weights, no torch.

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
