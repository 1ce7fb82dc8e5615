from collections.abc import Mapping
from typing import Any

from generator.case.case import Case
from generator.techniques.base import Published, Technique
from generator.techniques.edits import Edits, make_argument
from generator.techniques.traits import Trait

SUPPORTED = frozenset(
    {"gemma", "gemma2", "gemma3", "gemma3_text", "glm4", "granite", "llama", "mistral", "mixtral", "olmo2", "phi3"}
    | {"qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3"}
)
"""Text decoders that liger-kernel 0.8 patches (``MODEL_TYPE_TO_APPLY_LIGER_FN`` in its monkey_patch.py)."""


class Liger(Technique):
    """Liger's Triton kernels: fused linear cross-entropy, RMSNorm, rotary embedding and SwiGLU.

    What it does: never holds all logits at once, and its pointwise operators keep fewer activations.
    When it loses: beside torch.compile, which fuses the same operators.
    Known problems: needs Triton (CUDA) and a model type that Liger patches; results differ in the last bits.
    """

    axis = "loss"
    name = "liger"
    compiles = True
    provides = frozenset({Trait.FUSED_KERNELS})
    evidence = (
        Published(
            "https://arxiv.org/abs/2410.10989", "20 % more throughput and 60 % less memory than eager Hugging Face"
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        if why := case.explain_missing("liger"):
            return why
        if case.workload.task_facts.classifies:
            return "a classification head has no vocabulary-sized logits to fuse"
        if case.workload.task == "sft":
            return "TRL computes the loss in chunks itself, and deprecates Liger"
        if case.model.model_type not in SUPPORTED:
            return f"Liger does not patch models of type {case.model.model_type}"
        return case.stack.why_missing("liger-kernel")

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"loss_kernel": "fused", "fused_kernels": "liger"}

    def edits(self, case: Case) -> Edits:
        return Edits(
            training_arguments=(
                make_argument("use_liger_kernel", True, "fused cross-entropy, RMSNorm, rotary and SwiGLU"),
            ),
            requirements=("liger-kernel",),
        )
