from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from generator.case.case import Case
from generator.techniques.attention.eager import make_attention_edits
from generator.techniques.base import Published, Technique
from generator.techniques.edits import Edits
from generator.techniques.traits import Trait

WITHOUT_SDPA = frozenset(
    [
        "big_bird",
        "bigbird_pegasus",
        "bloom",
        "canine",
        "codegen",
        "convbert",
        "cpmant",
        "deberta",
        "deberta-v2",
        "deepseek_v4",
        "falcon_mamba",
        "flaubert",
        "flint",
        "fnet",
        "funnel",
        "gemma2",
        "git",
        "got_ocr2",
        "gpt_neo",
        "gpt_neox_japanese",
        "gpt_oss",
        "gptj",
        "granite_swa",
        "granitemoe_swa",
        "hy_v4",
        "ibert",
        "inkling2_text",
        "layoutlmv2",
        "layoutlmv3",
        "lilt",
        "longformer",
        "luke",
        "mamba",
        "mamba2",
        "markuplm",
        "megatron-bert",
        "mimo_v2_flash",
        "mpnet",
        "mpt",
        "mra",
        "mvp",
        "nystromformer",
        "openai-gpt",
        "perceiver",
        "prophetnet",
        "reformer",
        "rembert",
        "roformer",
        "rwkv",
        "squeezebert",
        "t5gemma",
        "tapas",
        "trocr",
        "vaultgemma",
        "xglm",
        "xlm",
        "xlnet",
        "xlstm",
        "yoso",
    ]
)
"""Model types for which Transformers raises when it is asked for SDPA (5.23; ``_supports_sdpa`` of the class): all that make a causal
language model or a classifier of sequences, and what its tables have besides."""


class Sdpa(Technique):
    """PyTorch's scaled_dot_product_attention: the best kernel that PyTorch itself has for the device.

    What it does: picks a flash, memory-efficient or plain kernel; the first two never hold the score matrix.
    When it loses: where texts are packed and must not see each other, because the mask that keeps them apart is dense.
    Known problems: one padded row whose mask is kept makes it dense, and the flash kernel is left; before Ampere, keys of
    grouped heads are repeated, for the memory-efficient kernel takes none (without that all scores would be held); it cannot
    return attention weights.
    """

    axis = "attention"
    name = "sdpa"
    baseline = True
    modes = ("train", "infer")
    provides = frozenset({Trait.SDPA, Trait.TRANSFORMERS_MODEL})
    evidence = (
        Published(
            "https://huggingface.co/docs/transformers/en/llm_tutorial_optimization",
            "octocoder, long prompt: 10.97 s to 3.02 s and 37.7 to 32.6 GB",
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        if case.model.model_type in WITHOUT_SDPA:
            return f"Transformers has no SDPA for models of type {case.model.model_type}"
        return None

    def effects(self, case: Case) -> Mapping[str, Any]:
        flash, efficient = (case.explain_missing(kernel) is None for kernel in ("flash", "efficient"))
        # what has the one in 16 bits is taken to have the other in 32
        kernels = {"flash_kernels": flash, "efficient_kernels": flash or efficient}
        if takes_cudnn(case):
            kernels["attention_kernel"] = "cudnn"
        return {"attention": "sdpa", **kernels, "repeats_keys": needs_repeated_keys(case)}

    def edits(self, case: Case) -> Edits:
        edits = make_attention_edits("sdpa")
        if not needs_repeated_keys(case):
            return edits
        called, imported = ("repeat_keys()",), ("from repeated_keys import repeat_keys",)
        return replace(
            edits,
            imports=imported,
            infer_imports=imported,
            setup=called,
            infer_setup=called,
            fragments=("repeated_keys",),
        )


CUDNN_HEAD_DIM = 128
"""the widest head that was measured; wider ones, of which PyTorch takes it up to 256 on Hopper alone, were not"""


def takes_cudnn(case: Case) -> bool:
    """Whether PyTorch takes cuDNN's kernel in training: twice as fast there as FlashAttention-2 (benchmarks/results/gpu_day_h200.json).
    Of the prefill of generate, which may bring a mask, that was not seen."""
    if case.workload.mode != "train" or case.model.head_dim > CUDNN_HEAD_DIM:
        return False
    return case.explain_missing("cudnn-attention") is None


def needs_repeated_keys(case: Case) -> bool:
    """Whether a kernel that holds no scores takes keys of grouped heads only where they are repeated: on a T4, Qwen2.5-1.5B wrote 1.62
    to 1.84 times the tokens per second with them (https://github.com/huggingface/transformers/pull/45776)."""
    grouped = case.model.kv_heads < case.model.heads
    return grouped and case.explain_missing("flash") is not None and case.explain_missing("efficient") is None
