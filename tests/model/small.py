"""A small, uneven config for every type: no two sizes are equal, so that no formula is right by chance."""

from __future__ import annotations

SIZES = {
    "hidden_size": 48,
    "d_model": 48,
    "n_embd": 48,
    "embed_dim": 48,
    "dim": 48,
    "intermediate_size": 80,
    "ffn_dim": 80,
    "d_ff": 80,
    "n_inner": 80,
    "hidden_dim": 80,
    "ffn_hidden_size": 80,
    "dff": 80,
    "encoder_ffn_dim": 80,
    "decoder_ffn_dim": 88,
    "moe_intermediate_size": 40,
    "shared_expert_intermediate_size": 56,
    "shared_intermediate_size": 56,
    "intermediate_size_mlp": 72,
    "num_hidden_layers": 5,
    "num_layers": 5,
    "n_layer": 5,
    "n_layers": 5,
    "encoder_layers": 3,
    "decoder_layers": 5,
    "num_decoder_layers": 3,
    "num_attention_heads": 6,
    "n_head": 6,
    "n_heads": 6,
    "num_heads": 6,
    "attention_heads": 6,
    "n_shared_experts": 2,
    "moe_num_shared_experts": 2,
    "first_k_dense_replace": 2,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 3,
    "num_key_value_heads": 2,
    "num_kv_heads": 2,
    "vocab_size": 97,
    "max_position_embeddings": 37,
    "n_positions": 37,
    "n_ctx": 37,
    "type_vocab_size": 3,
    "num_experts": 7,
    "num_local_experts": 7,
    "n_routed_experts": 8,
    "moe_num_experts": 7,
    "num_experts_per_tok": 2,
    "sliding_window": 11,
    "q_lora_rank": 20,
    "kv_lora_rank": 28,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6,
    "v_head_dim": 10,
    "image_size": 32,
    "patch_size": 8,
    "num_channels": 3,
    "depth": 3,
    "out_hidden_size": 48,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0, 2],
    "projection_dim": 44,
    "projection_size": 36,
    "num_mel_bins": 12,
    "max_source_positions": 30,
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "decoder_start_token_id": 2,
}
"""by the names that config classes give them"""


def small(model_type: str, **changes) -> dict:
    """A config.json of the type: what its class has of ``SIZES``, and ``changes``."""
    import dataclasses

    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    cls = CONFIG_MAPPING[model_type]
    config = cls() if cls.sub_configs_defaults else None
    parts = {key: getattr(config, key) for key in cls.sub_configs_defaults}
    nested = {key: small(part.model_type) for key, part in parts.items() if part is not None}
    fields = {field.name for field in dataclasses.fields(cls)}
    return {"model_type": model_type} | {k: v for k, v in SIZES.items() if k in fields} | nested | changes
