from small import small

VARIANTS: dict = {}
BASE: dict = {
    "gpt_neo": {"attention_types": [[["global", "local"], 2], [["local"], 1]]},
    "hunyuan_v1_dense": {"head_dim": 10},
    "hunyuan_v1_moe": {"head_dim": 10},
    "ministral": {"head_dim": 10},
    "swin": {"embed_dim": 12, "depths": [2, 1, 3], "num_heads": [2, 4, 6], "patch_size": 4, "image_size": 48},
    "swinv2": {"embed_dim": 12, "depths": [2, 1, 3], "num_heads": [2, 4, 6], "patch_size": 4, "image_size": 48},
    "convnext": {"hidden_sizes": [12, 20, 28], "depths": [2, 1, 3], "num_stages": 3},
    "convnextv2": {"hidden_sizes": [12, 20, 28], "depths": [2, 1, 3], "num_stages": 3},
    "resnet": {"embedding_size": 10, "hidden_sizes": [16, 32, 40], "depths": [2, 1, 3]},
    "internvl_vision": {"image_size": [32, 24], "patch_size": [8, 8]},
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
}


def configs(model_type: str) -> list[dict]:
    base = small(model_type, **BASE.get(model_type, {}))
    return [base, *({**base, **more} for more in VARIANTS.get(model_type, ()))]
