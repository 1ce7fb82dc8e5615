"""What a block does that its sizes do not tell: norms, activation, layout. Read from the modelling code of Transformers 5.23.

An architecture that is not listed gets the usual: RMSNorm where the feed-forward is gated, LayerNorm where it is not.
Each entry was checked against a trace of a real training step (tests/cost/test_traces.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """``rms_norm`` None: by the kind of feed-forward. ``post_norms`` are norms beyond two a block.

    ``qk_norm`` normalizes queries and keys. ``fused_qkv`` keeps one projection for all three, ``partial_rotary`` joins
    rotated and plain parts of the heads by a copy; ``rotary`` None: where there is RMSNorm. ``fused_gate`` is one projection
    for gate and up. ``relu`` keeps its output alone. ``parallel`` feeds attention and feed-forward the same residual.
    ``composite_gelu`` computes GELU by separate operators, each of which keeps its input. ``float32_norm_weight`` multiplies
    by the weight before casting back. ``dropout`` counts those of hidden states a block, ``attention_dropout`` is that of the
    scores: the defaults of the configuration class.
    """

    rms_norm: bool | None = None
    qk_norm: bool = False
    post_norms: int = 0
    fused_qkv: bool = False
    partial_rotary: bool = False
    fused_gate: bool = False
    rotary: bool | None = None
    composite_gelu: bool = False
    relu: bool = False
    parallel: bool = False
    float32_norm_weight: bool = False
    eager_only: bool = False
    """attention scores are always materialized (soft-capped logits)"""
    capped_logits: bool = False
    ends_in_norm: bool = False
    """its norms follow attention and feed-forward instead of going before them"""
    shared_norm: bool = False
    """attention and feed-forward read the output of one norm"""
    dropout: int = 0
    attention_dropout: bool = False


USUAL = Traits()
BY_MODEL_TYPE = {
    "qwen3": Traits(qk_norm=True),
    "qwen3_moe": Traits(qk_norm=True),
    "olmo2": Traits(qk_norm=True, float32_norm_weight=True, ends_in_norm=True),
    "olmo3": Traits(qk_norm=True, float32_norm_weight=True, ends_in_norm=True),
    "gemma": Traits(float32_norm_weight=True),
    "gemma2": Traits(post_norms=2, float32_norm_weight=True, eager_only=True, capped_logits=True),
    "gemma3": Traits(post_norms=2, qk_norm=True, float32_norm_weight=True),
    "gemma3_text": Traits(post_norms=2, qk_norm=True, float32_norm_weight=True),
    "phi3": Traits(fused_qkv=True, fused_gate=True, partial_rotary=True),
    "gpt2": Traits(composite_gelu=True, fused_qkv=True),
    "gpt_neo": Traits(composite_gelu=True),
    "opt": Traits(relu=True),
    "gptj": Traits(parallel=True, composite_gelu=True, partial_rotary=True, shared_norm=True),
    "codegen": Traits(parallel=True, composite_gelu=True, fused_qkv=True, partial_rotary=True, shared_norm=True),
    "phi": Traits(parallel=True, composite_gelu=True, partial_rotary=True, shared_norm=True),
    "gpt_neox": Traits(parallel=True, fused_qkv=True, partial_rotary=True),
    "gpt_bigcode": Traits(fused_qkv=True),
    "starcoder2": Traits(rotary=True),
    "falcon": Traits(rotary=True, fused_qkv=True, parallel=True, shared_norm=True),
    "bloom": Traits(fused_qkv=True, composite_gelu=True),
    "mpt": Traits(fused_qkv=True),
    "stablelm": Traits(rms_norm=False, partial_rotary=True),
    "modernbert": Traits(rms_norm=False, rotary=True, fused_qkv=True, fused_gate=True),
    "cohere": Traits(rms_norm=True, parallel=True, shared_norm=True),
}


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
"""model types whose configuration class drops a tenth of the hidden states and of the attention scores unless told otherwise"""
HIDDEN_DROPOUT_ONLY = frozenset({"opt", "fnet", "gte", "ctrl", "xlnet"})


def traits_of(model_type: str) -> Traits:
    found = BY_MODEL_TYPE.get(model_type, USUAL)
    if model_type in DROPOUT or model_type in HIDDEN_DROPOUT_ONLY:
        return replace(found, dropout=1 if model_type == "distilbert" else 2, attention_dropout=model_type in DROPOUT)
    return found
