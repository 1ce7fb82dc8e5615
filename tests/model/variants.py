"""Small configs of every type in the tables, and uneven variants of them: what no default would show."""

from __future__ import annotations

from small import small

BASE: dict[str, dict] = {
    "gpt_neo": {"attention_types": [[["global", "local"], 2], [["local"], 1]]},
    "hunyuan_v1_dense": {"head_dim": 10},
    "hunyuan_v1_moe": {"head_dim": 10},
    "ministral": {"head_dim": 10},
    "deepseek_v2": {"num_key_value_heads": 6},
    "deepseek_v3": {"num_key_value_heads": 6, "n_group": 2, "topk_group": 2},
    "deepseek_v32": {"num_key_value_heads": 6, "n_group": 2, "topk_group": 2},
    "glm_moe_dsa": {"num_key_value_heads": 6},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "mamba2": {"head_dim": 16, "n_groups": 2},
    "bamba": {"mamba_n_heads": 8, "mamba_d_state": 12, "attn_layer_indices": [1, 3]},
    "granitemoehybrid": {
        "mamba_n_heads": 8,
        "mamba_d_state": 12,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"] * 2,
    },
    "falcon_h1": {"mamba_n_heads": 8, "mamba_d_state": 12, "mamba_d_ssm": 64},
    "lfm2": {"full_attn_idxs": [1, 2]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv", "conv", "full_attention"]},
    "qwen3_next": {
        "linear_key_head_dim": 6,
        "linear_value_head_dim": 10,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
    },
    "nemotron_h": {
        "mamba_num_heads": 8,
        "mamba_head_dim": 6,
        "ssm_state_size": 10,
        "n_groups": 2,
        "moe_shared_expert_intermediate_size": 44,
    },
    "swin": {"embed_dim": 12, "depths": [2, 1, 3], "num_heads": [2, 4, 6], "patch_size": 4, "image_size": 48},
    "swinv2": {"embed_dim": 12, "depths": [2, 1, 3], "num_heads": [2, 4, 6], "patch_size": 4, "image_size": 48},
    "convnext": {"hidden_sizes": [12, 20, 28], "depths": [2, 1, 3], "num_stages": 3},
    "convnextv2": {"hidden_sizes": [12, 20, 28], "depths": [2, 1, 3], "num_stages": 3},
    "resnet": {"embedding_size": 10, "hidden_sizes": [16, 32, 40], "depths": [2, 1, 3]},
}
"""what a type needs beside the usual small sizes"""
UNTIED, TIED = {"tie_word_embeddings": False}, {"tie_word_embeddings": True}
BIASES = {"attention_bias": True, "mlp_bias": True}
SHARED = {"n_shared_experts": 3, "first_k_dense_replace": 1}
VARIANTS: dict[str, list[dict]] = {
    "llama": [TIED, BIASES, {"head_dim": 20, "num_key_value_heads": None}, {"num_key_value_heads": 1}],
    "mistral": [{"sliding_window": None}, TIED | {"head_dim": 14}],
    "qwen2": [TIED, {"use_sliding_window": True, "max_window_layers": 2}],
    "qwen3": [TIED | {"attention_bias": True}],
    "gemma2": [UNTIED | {"head_dim": 12}],
    "gemma3_text": [UNTIED, {"sliding_window_pattern": 2}],
    "cohere": [{"use_qk_norm": True}],
    "olmo2": [{"attention_bias": True}],
    "phi": [{"qk_layernorm": True}],
    "stablelm": [{"qk_layernorm": True, "use_qkv_bias": True, "use_parallel_residual": True}],
    "falcon": [
        {"new_decoder_architecture": True},
        {"multi_query": False, "bias": True},
        {"parallel_attn": False, "alibi": True},
    ],
    "gpt_bigcode": [{"multi_query": False}],
    "opt": [{"word_embed_proj_dim": 20}, {"do_layer_norm_before": False}, {"enable_bias": False}],
    "gpt2": [UNTIED | {"n_inner": None}],
    "bloom": [{"n_embed": 24, "hidden_size": 48}],
    "mixtral": [{"head_dim": 12, "num_experts_per_tok": 1}],
    "qwen2_moe": [{"mlp_only_layers": [1], "decoder_sparse_step": 2}, {"qkv_bias": False}],
    "qwen3_moe": [{"mlp_only_layers": [0, 3], "head_dim": 18}],
    "deepseek_v2": [{"q_lora_rank": None}, SHARED],
    "deepseek_v3": [{"q_lora_rank": None}, SHARED | {"attention_bias": True}],
    "glm4_moe": [{"use_qk_norm": True, "attention_bias": True}, SHARED],
    "ernie4_5_moe": [{"use_bias": True}, {"moe_layer_start_index": 2, "moe_layer_interval": 2}],
    "llama4_text": [{"moe_layers": [1, 4]}, {"interleave_moe_layer_step": 2}],
    "jamba": [{"num_experts": 1}, {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_proj_bias": True}],
    "granitemoehybrid": [{"num_local_experts": 0}, {"layer_types": None}],
    "falcon_h1": [{"mamba_rms_norm": True, "projectors_bias": True}, {"mamba_d_ssm": None}],
    "lfm2": [{"block_auto_adjust_ff_dim": False}, {"conv_bias": True, "block_multiple_of": 16}],
    "minimax": [{"layer_types": ["full_attention"] + ["linear_attention"] * 4}],
    "qwen3_next": [{"full_attention_interval": 2, "mlp_only_layers": [0]}],
    "nemotron_h": [{"hybrid_override_pattern": "M-M*EM", "num_hidden_layers": 6}, {"moe_latent_size": 24}],
    "mamba": [{"time_step_rank": 7, "use_bias": True}, {"intermediate_size": 72}],
    "bert": [{"type_vocab_size": 1}],
    "electra": [{"embedding_size": 48}],
    "deberta": [{"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False}],
    "albert": [{"num_hidden_groups": 2, "inner_group_num": 2}],
    "modernbert": [{"attention_bias": True, "mlp_bias": True, "norm_bias": True}],
    "t5": [{"feed_forward_proj": "gated-gelu", "num_decoder_layers": None, "tie_word_embeddings": False}, {"d_kv": 10}],
    "bart": [UNTIED],
    "whisper": [UNTIED],
    "beit": [{"use_relative_position_bias": True, "use_mean_pooling": False, "layer_scale_init_value": 0.0}],
    "dinov2": [{"use_swiglu_ffn": True}],
    "swin": [{"use_absolute_embeddings": True, "qkv_bias": False, "window_size": 3}],
    "convnext": [{"layer_scale_init_value": 0.0}],
    "resnet": [{"layer_type": "basic", "downsample_in_first_stage": True}],
    "wav2vec2": [{"feat_extract_norm": "layer", "conv_bias": True, "do_stable_layer_norm": True}],
    "hubert": [{"feat_proj_layer_norm": False, "mask_time_prob": 0.0}],
    "llava": [TIED, {"vision_feature_layer": [-2, -1], "multimodal_projector_bias": False}],
    "gemma3": [UNTIED],
    "paligemma": [{"projection_dim": 52}],
}
"""changes to the base, each another config"""


def configs(model_type: str) -> list[dict]:
    base = small(model_type, **BASE.get(model_type, {}))
    return [base, *({**base, **more} for more in VARIANTS.get(model_type, ()))]
