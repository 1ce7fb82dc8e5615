"""Mixtures whose causal model adds a loss of its routers (Transformers 5.23, modeling_*.py; each was run: tests/test_router_loss.py)."""

from __future__ import annotations

WITH_LOSS = frozenset(
    [
        "deepseek_v4",
        "ernie4_5_moe",
        "flex_olmo",
        "flint",
        "gpt_oss",
        "granitemoe",
        "granitemoe_swa",
        "granitemoehybrid",
        "granitemoeshared",
        "jamba",
        "laguna",
        "mellum",
        "minimax",
        "minimax_m2",
        "minimax_m3_vl_text",
        "mixtral",
        "olmoe",
        "phimoe",
        "qwen2_moe",
        "qwen3_5_moe_text",
        "qwen3_moe",
        "qwen3_next",
    ]
)
"""Model types; the weight of the loss is ``router_aux_loss_coef`` of the config, or its class's default."""
