"""Whether the mask of padding is needed: on the right of a sequence, causal attention never looks at it."""

from __future__ import annotations

from generator.case.case import Case
from generator.techniques.edits import Edits
from generator.techniques.launch import is_by_loop

MASKLESS = frozenset(
    [
        "apertus",
        "arcee",
        "biogpt",
        "bitnet",
        "cohere",
        "cohere2",
        "ctrl",
        "ernie4_5",
        "exaone4",
        "gemma",
        "gemma3_text",
        "glm",
        "glm4",
        "gpt2",
        "gpt_bigcode",
        "gpt_neox",
        "granite",
        "granitemoe",
        "helium",
        "hunyuan_v1_dense",
        "llama",
        "ministral",
        "ministral3",
        "mistral",
        "mixtral",
        "nemotron",
        "olmo",
        "olmo2",
        "olmo3",
        "olmoe",
        "opt",
        "persimmon",
        "phi",
        "phi3",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "seed_oss",
        "smollm3",
        "stablelm",
        "starcoder2",
    ]
)
"""Model types whose loss and gradients are the same without the mask of padding on the right, and whose SDPA is then called
without a mask: tests/test_padding.py computes both ways. Falcon is not among them, whose SDPA always takes one."""


def drops_padding_mask(case: Case) -> bool:
    """SFTTrainer pads on the right. Mixtures of experts keep the mask: their balancing loss would count padding."""
    return case.workload.task == "sft" and case.model.model_type in MASKLESS and not case.model.experts


def make_padding_edits(case: Case) -> Edits:
    if not drops_padding_mask(case) or is_by_loop(case.layout):  # loop.py gives the model no mask
        return Edits()
    return Edits(
        imports=("from padding import drop_padding_mask",),
        fragments=("padding",),
        after_trainer=("drop_padding_mask(trainer.model)",),
    )


def attends_without_mask(case: Case) -> bool:
    """Whether SDPA is called with ``is_causal`` alone: nothing padded, no window that a sequence reaches."""
    padded = case.workload.task != "causal-lm" and not drops_padding_mask(case)
    longest = case.workload.seq_len + (case.vendor.pad_to_multiple_of or 1)
    narrow = any(kind.window is not None and kind.window <= longest for kind in case.model.attended)
    return case.model.model_type in MASKLESS and not padded and not narrow
