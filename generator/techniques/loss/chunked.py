from generator.techniques.base import Published, Technique
from generator.techniques.edits import Edits

VERIFIED = frozenset(
    {"arcee", "bloom", "ernie4_5", "exaone4", "gemma", "gemma3_text", "glm", "glm4", "gpt2", "gpt_bigcode", "gpt_neox"}
    | {
        "gpt_oss",
        "helium",
        "hunyuan_v1_dense",
        "llama",
        "minimax",
        "mistral",
        "mixtral",
        "mpt",
        "nemotron",
        "olmo",
        "olmo2",
    }
    | {"olmoe", "opt", "persimmon", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss", "smollm3"}
    | {"stablelm", "starcoder2", "xglm"}
)
"""Model types on which the emitted function gave the plain loss and its gradients (CPU, fp32, 2026-11). Types that scale or
cap their logits (cohere, gemma2, granite) give another loss and are left out."""


class Chunked(Technique):
    """Logits and cross-entropy for a thousand tokens at a time, computed again in the backward pass.

    Never holds tokens x vocabulary; the head's product runs twice. Pays for large vocabularies and long sequences; the numbers
    are the same.
    """

    axis = "loss"
    name = "chunked"
    evidence = (
        Published(
            "https://arxiv.org/abs/2411.09009",
            "Gemma 2 2B: memory of the loss from 24 GB to 1 MB by never holding the logits",
        ),
    )

    def obstacle(self, case):
        if case.workload.task == "text-classification":
            return "a classification head has no vocabulary-sized logits"
        if case.workload.task == "causal-lm" and case.model.model_type not in VERIFIED:
            return f"not verified equal to the plain loss for models of type {case.model.model_type}"
        return None

    def clash(self, other, case):
        if case.workload.task == "causal-lm" and other.axis == "compile" and other.name == "default":
            return "the chunk loop breaks the compiled graph"
        return None

    def effects(self, case):
        return {"loss_kernel": "tiled" if case.workload.task == "sft" else "chunked"}  # TRL cuts the vocabulary too

    def edits(self, case):
        if case.workload.task == "sft":  # what TRL does by itself
            return Edits()
        return Edits(
            imports=("from chunked_loss import chunk_loss",),
            fragments=("chunked_loss",),
            after_model=("chunk_loss(model)",),
        )
