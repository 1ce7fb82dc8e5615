from generator.techniques.attention.eager import attention_edits
from generator.techniques.base import Published, Technique
from generator.techniques.precision.bf16 import lacks_bf16
from generator.techniques.precision.fp16 import lacks_fp16


class FlashAttention(Technique):
    """FlashAttention-2 as a prebuilt kernel from the kernels hub.

    Gains over SDPA where texts of different length are packed without padding. Needs 16-bit arithmetic, a GPU of compute
    capability 8.0, the ``kernels`` package in the range that Transformers accepts, and the network at first use.
    """

    axis = "attention"
    name = "flash-attention"
    modes = ("train", "infer")
    evidence = (
        Published(
            "https://arxiv.org/abs/2307.08691", "FlashAttention-2: up to 73 % of peak on A100, forward and backward"
        ),
    )

    def obstacle(self, case):
        if not case.on_cuda or case.capability < (8, 0):
            return "the prebuilt kernel needs an NVIDIA GPU of compute capability 8.0 or more"
        if lacks_bf16(case) and lacks_fp16(case):
            return "it computes in 16 bits only"
        return case.stack.why_missing("kernels")

    def clash(self, other, case):
        if other.axis == "precision" and other.name in ("fp32", "tf32"):
            return f"flash-attention computes in 16 bits, {other.name} does not"
        return None

    def effects(self, case):
        return {"attention": "flash"}

    def edits(self, case):
        return attention_edits("kernels-community/flash-attn2", "prebuilt FlashAttention-2", requirements=("kernels",))
