from collections.abc import Mapping
from typing import Any

from generator.case.case import Case
from generator.techniques.base import Published, Technique
from generator.techniques.edits import Edits
from generator.techniques.traits import Trait

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

    What it does: never holds tokens x vocabulary logits; the numbers are the same.
    When it loses: for small vocabularies and short sequences: the head's product runs twice.
    Known problems: replaces the model's forward, so it is offered only for model types on which it was compared with
    the plain loss; under TRL it is TRL's own, which needs a C compiler on a GPU (Triton), and on a CPU makes logits of
    every token: there the project leaves out those that are not learned from.
    """

    axis = "loss"
    name = "chunked"
    provides = frozenset({Trait.CHUNKED_FORWARD, Trait.LOSS_OF_TRL})
    evidence = (
        Published(
            "https://arxiv.org/abs/2411.09009",
            "Gemma 2 2B: memory of the loss from 24 GB to 1 MB by never holding the logits",
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        if case.workload.task_facts.classifies:
            return "a classification head has no vocabulary-sized logits"
        if case.workload.task == "causal-lm" and case.model.model_type not in VERIFIED:
            return f"not verified equal to the plain loss for models of type {case.model.model_type}"
        return None

    def traits(self, case: Case) -> frozenset[Trait]:
        """TRL's own chunks are not a forward of ours."""
        return frozenset({Trait.LOSS_OF_TRL if case.workload.task == "sft" else Trait.CHUNKED_FORWARD})

    def effects(self, case: Case) -> Mapping[str, Any]:
        if case.workload.task == "sft":  # TRL cuts the vocabulary too
            return {"loss_kernel": "tiled", "trained_share": case.workload.trained_share}
        return {"loss_kernel": "chunked"}

    def edits(self, case: Case) -> Edits:
        if case.workload.task == "sft" and case.on_cpu:  # what TRL does by itself where it has Triton
            return Edits(
                imports=("from trained_tokens import score_trained_tokens",),
                fragments=("trained_tokens",),
                after_trainer=("score_trained_tokens(trainer.model)",),
            )
        if case.workload.task == "sft":  # what TRL does by itself
            return Edits()
        return Edits(
            imports=("from chunked_loss import chunk_loss",),
            fragments=("chunked_loss",),
            after_model=("chunk_loss(model, args.label_smoothing_factor)",),
        )
