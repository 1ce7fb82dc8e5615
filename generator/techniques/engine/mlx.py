from generator.case.case import Case
from generator.techniques.base import Published
from generator.techniques.edits import Edits
from generator.techniques.engines import Engine, explain_missing_build
from generator.techniques.traits import Trait


class Mlx(Engine):
    """MLX: Apple's arrays and kernels for its own GPUs, with mlx-lm's models and continuous batching.

    What it does: reads the model's own files, packs weights into 8 or 4 bits as it starts, and shares the host's memory.
    When it loses: where its kernels miss what a model has: Qwen3.5's prompts took 3 to 10 times as long as with llama.cpp on a Mac mini
    M4, by the first of the runs below. With ordinary attention both reach 65 to 75 % of the GPU.
    Known problems: its server was run on Linux alone, by mlx-cpu, whose kernels are not Metal's.
    """

    name = "mlx"
    engine = "mlx"
    role = "serve-mlx"
    leaf = "mlx"
    adds = 2
    provides = frozenset({Trait.OWN_KERNELS, Trait.PACKS_8_BITS, Trait.PACKS_4_BITS})
    model_types = frozenset(
        ["gemma", "gemma2", "gpt_oss", "granite", "llama", "mistral", "mixtral", "olmo2", "phi3"]
    ) | {*("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3", "stablelm", "starcoder2")}
    """some of the many of mlx_lm/models (0.32); Llama was run"""
    evidence = (
        Published(
            "https://www.jitesh.dev/blog/qwen35-apple-silicon-benchmark.html",
            "Mac mini M4, Qwen3.5 in 4 bits: 0.8B 192, 4B 39, 9B 22 tokens/s, which is what its 120 GB/s can read",
        ),
        Published(
            "https://github.com/ml-explore/mlx-lm/blob/d78bf58e/mlx_lm/BENCHMARKS.md",
            "M4 Max, Qwen3-4B: 52 tokens/s in bf16, 87 in 8 bits, 135 in 4; prompts of 2,048 tokens at 1,600 to 1,800",
        ),
    )

    def explain_model(self, case: Case) -> str | None:
        if case.model.quantization:
            return f"it packs plain weights by itself, and the checkpoint is quantized ({case.model.quantization})"
        if case.model.model_type not in self.model_types:
            return f"mlx-lm was not tried with models of type {case.model.model_type}"
        return None

    def explain_device(self, case: Case) -> str | None:
        return "its kernels are for Apple's GPUs" if case.on_cpu else explain_missing_build(self.role, case)

    def edits(self, case: Case) -> Edits:
        return Edits(environment=(("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1"),))
