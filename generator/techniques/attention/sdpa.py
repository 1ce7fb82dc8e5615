from generator.techniques.attention.eager import attention_edits
from generator.techniques.base import Published, Technique

FLASH = (8, 0)
"""Before Ampere half-precision attention with grouped keys falls back to the kernel that makes all scores
(https://github.com/huggingface/transformers/issues/48633)."""


class Sdpa(Technique):
    """PyTorch's scaled_dot_product_attention: the best kernel that PyTorch itself has for the device.

    Never keeps the score matrix where a flash or memory-efficient kernel applies. Padding masks and some head sizes make it
    fall back to slower kernels. It cannot return attention weights.
    """

    axis = "attention"
    name = "sdpa"
    baseline = True
    modes = ("train", "infer")
    evidence = (
        Published(
            "https://huggingface.co/docs/transformers/en/llm_tutorial_optimization",
            "octocoder, long prompt: 10.97 s to 3.02 s and 37.7 to 32.6 GB",
        ),
    )

    def effects(self, case):
        return {"attention": "sdpa", "flash_kernels": not case.on_cuda or case.capability >= FLASH}

    def edits(self, case):
        return attention_edits("sdpa")
