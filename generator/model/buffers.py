"""Types whose weights have buffers among them: tensors that are saved and not trained (tests/model/test_buffers.py asks Transformers)."""

from __future__ import annotations

SAVED_BUFFERS = frozenset(
    [
        "apertus",
        "axk1",
        "axk2",
        "bailing_hybrid",
        "beam",
        "deepseek_v3",
        "deepseek_v32",
        "deepseek_v4",
        "dots1",
        "exaone_moe",
        "gemma4",
        "gemma4_text",
        "gemma4_unified",
        "gemma4_unified_text",
        "glm4_moe",
        "glm4_moe_lite",
        "glm_moe_dsa",
        "hy_v3",
        "hy_v4",
        "ibert",
        "inkling2_text",
        "inkling_text",
        "kimi_linear",
        "kolibri1",
        "lfm2_moe",
        "longcat_flash",
        "mimo_v2_flash",
        "minimax",
        "minimax_m2",
        "minimax_m3_vl_text",
        "mra",
        "nemotron_h",
        "phi4_multimodal",
        "solar_open",
    ]
)
