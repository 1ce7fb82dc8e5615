"""What a block does that its sizes do not tell: norms, activation, layout. Read from the modelling code of Transformers 5.23.

An architecture that is not listed gets the usual: RMSNorm where the feed-forward is gated, LayerNorm where it is not.
Each entry was checked against a trace of a real training step (tests/cost/test_traces.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from generator.model.spec import ModelSpec


class BlockTraits(TypedDict, total=False):
    """Fields of ``generator.cost.shape.Shape`` (they are explained there) in which a model type is not the usual."""

    rms_norm: bool
    rotary: bool
    qk_norm: bool
    gated_attention: bool
    post_norms: int
    float32_norm_weight: bool
    ends_in_norm: bool
    shared_norm: bool
    parallel: bool
    fused_qkv: bool
    fused_gate: bool
    partial_rotary: bool
    composite_gelu: bool
    relu: bool
    eager_only: bool
    capped_logits: bool
    dropout: int
    attention_dropout: bool
    adapted_experts: bool
    every_expert: bool


BLOCK_TRAITS: Mapping[str, BlockTraits] = {
    "qwen3": {"qk_norm": True},
    "qwen3_moe": {"qk_norm": True},
    "qwen3_next": {"qk_norm": True, "float32_norm_weight": True, "gated_attention": True},
    "olmo2": {"qk_norm": True, "float32_norm_weight": True, "ends_in_norm": True},
    "olmo3": {"qk_norm": True, "float32_norm_weight": True, "ends_in_norm": True},
    "gemma": {"float32_norm_weight": True},
    "gemma2": {"post_norms": 2, "float32_norm_weight": True, "eager_only": True, "capped_logits": True},
    "gemma3": {"post_norms": 2, "qk_norm": True, "float32_norm_weight": True},
    "gemma3_text": {"post_norms": 2, "qk_norm": True, "float32_norm_weight": True},
    "phi3": {"fused_qkv": True, "fused_gate": True, "partial_rotary": True},
    "gpt2": {"composite_gelu": True, "fused_qkv": True},
    "gpt_neo": {"composite_gelu": True},
    "opt": {"relu": True},
    "gptj": {"parallel": True, "composite_gelu": True, "partial_rotary": True, "shared_norm": True},
    "codegen": {
        "parallel": True,
        "composite_gelu": True,
        "fused_qkv": True,
        "partial_rotary": True,
        "shared_norm": True,
    },
    "phi": {"parallel": True, "composite_gelu": True, "partial_rotary": True, "shared_norm": True},
    "gpt_neox": {"parallel": True, "fused_qkv": True, "partial_rotary": True},
    "gpt_bigcode": {"fused_qkv": True},
    "starcoder2": {"rotary": True},
    "falcon": {"rotary": True, "fused_qkv": True, "parallel": True, "shared_norm": True},
    "bloom": {"fused_qkv": True, "composite_gelu": True},
    "mpt": {"fused_qkv": True},
    "stablelm": {"rms_norm": False, "partial_rotary": True},
    "modernbert": {"rms_norm": False, "rotary": True, "fused_qkv": True, "fused_gate": True},
    "cohere": {"rms_norm": True, "parallel": True, "shared_norm": True},
    "llama4_text": {"every_expert": True},
    "exaone_moe": {"qk_norm": True},
    "lfm2": {"qk_norm": True},
    "mellum": {"qk_norm": True},
    "olmoe": {"qk_norm": True},
    "glm": {"fused_gate": True, "partial_rotary": True},
    "glm4": {"fused_gate": True, "partial_rotary": True, "post_norms": 2},
    "glm4_moe": {"partial_rotary": True},
    "exaone4": {"qk_norm": True, "ends_in_norm": True},
    "flex_olmo": {"qk_norm": True, "ends_in_norm": True},
    "hyperclovax": {"post_norms": 2},
    "afmoe": {"qk_norm": True, "post_norms": 2},
    "arcee": {"rms_norm": True, "rotary": True},
    "apertus": {"rms_norm": True, "rotary": True, "qk_norm": True, "composite_gelu": True},
    "nanochat": {"qk_norm": True, "capped_logits": True},
    "persimmon": {"rotary": True, "partial_rotary": True, "fused_qkv": True},
    "vaultgemma": {"float32_norm_weight": True, "eager_only": True, "capped_logits": True},
}


WHOLE_ATTENTION = frozenset({"deepseek_v3"})
"""Of which the plan for tensor parallelism names the feed-forward alone (configuration_deepseek_v3.py: base_model_tp_plan)."""
DROPOUT = frozenset(
    [
        "bert",
        "bert-generation",
        "big_bird",
        "biogpt",
        "camembert",
        "canine",
        "convbert",
        "data2vec-text",
        "deberta",
        "deberta-v2",
        "distilbert",
        "electra",
        "ernie",
        "esm",
        "flaubert",
        "gpt-sw3",
        "gpt2",
        "gpt_bigcode",
        "ibert",
        "jina_embeddings_v3",
        "layoutlm",
        "lilt",
        "luke",
        "markuplm",
        "megatron-bert",
        "mpnet",
        "mra",
        "nystromformer",
        "openai-gpt",
        "roberta",
        "roberta-prelayernorm",
        "roc_bert",
        "roformer",
        "seed_oss",
        "splinter",
        "squeezebert",
        "xglm",
        "xlm",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
        "yoso",
    ]
)
"""model types whose configuration class drops a tenth of the hidden states and of the attention scores unless it is configured otherwise"""
HIDDEN_DROPOUT_ONLY = frozenset({"opt", "fnet", "gte", "ctrl", "xlnet"})
"""those that keep the attention scores whole"""
ADAPTED_EXPERTS = frozenset(
    {
        "afmoe",
        "beam",
        "cohere2_moe",
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "dots1",
        "ernie4_5_moe",
        "exaone_moe",
    }
    | {
        "flex_olmo",
        "glm4_moe",
        "glm4_moe_lite",
        "glm_moe_dsa",
        "hunyuan_v1_moe",
        "kimi_k2",
        "longcat_flash",
        "mellum",
        "minimax",
    }
    | {"minimax_m2", "mixtral", "olmoe", "qwen3_moe", "qwen3_next", "solar_open"}
)
"""model types of whose routed experts, and of whose router, PEFT 0.21 makes adapters where all linear layers are asked for
(utils/transformers_weight_conversion.py): by the names that the experts' matrices once had, so that dense feed-forwards of the same names,
shared experts among them, get none. Of other mixtures it adapts what is a linear layer, and the experts are not."""

UNGROUPED = frozenset({"dbrx", "jetmoe", "llama4_text", "longcat_flash", "step3p7"})
"""mixtures whose experts Transformers 5.23 does not multiply as one grouped product (their classes are not under
``use_experts_implementation``)"""


def groups_experts(model: ModelSpec) -> bool:
    return bool(model.experts) and model.model_type not in UNGROUPED


def read_block_traits(model_type: str) -> BlockTraits:
    """In what the blocks of ``model_type`` are not the usual."""
    traits = BLOCK_TRAITS.get(model_type, {})
    if model_type in ADAPTED_EXPERTS:
        return {**traits, "adapted_experts": True}
    if model_type in DROPOUT or model_type in HIDDEN_DROPOUT_ONLY:
        dropped = 1 if model_type == "distilbert" else 2
        return {**traits, "dropout": dropped, "attention_dropout": model_type in DROPOUT}
    return traits
