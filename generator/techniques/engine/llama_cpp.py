from collections.abc import Mapping
from typing import Any, ClassVar

from generator.case.case import Case
from generator.techniques.base import Published
from generator.techniques.edits import Edits
from generator.techniques.engines import CpuEngine, explain_missing_build
from generator.techniques.traits import Trait


class LlamaCpp(CpuEngine):
    """llama.cpp: one small library, no graph to build, products with 8- and 4-bit weights in blocks of 32.

    What it does: loads in a second what was converted in half a minute; its server's slots share one batch.
    When it loses: its prebuilt wheel has AVX2 and no more: behind engines that choose by processor (AVX-512, VNNI, AMX).
    Known problems: its threads wait for each other after every operator, so that other load on the machine stops all of them.
    """

    name = "llama-cpp"
    engine = "llama-cpp"
    role = "serve-llama-cpp"
    conversion = "convert-llama-cpp"
    leaf = "llama_cpp"
    checkpoints = frozenset({"gguf"})
    provides = frozenset({Trait.PACKS_8_BITS, Trait.PACKS_4_BITS, Trait.RUNS_DRAFT_MODEL})
    model_types = frozenset(
        [
            *("apertus", "arcee", "cohere", "ernie4_5", "exaone4", "gemma", "gpt_oss", "granite"),
            *("granitemoe", "llama"),
            *("mistral", "mixtral", "nemotron", "olmo", "olmo2", "olmo3", "qwen2", "qwen2_moe", "qwen3", "seed_oss"),
            *("smollm3", "stablelm", "starcoder2"),
        ]
    )
    """whose greedy tokens, converted in 32 bits, were those of Transformers: SmolLM2 and small ones of random weights"""
    windowed = frozenset({"exaone4", "gpt_oss", "olmo3"})
    """architectures of its own with windows; Mistral is a Llama to its converter, and a prompt longer than the window was answered as if
    there were none (xllamacpp 2026.10)"""
    rotations: ClassVar = {"": frozenset({"dynamic", "linear", "llama3", "yarn"})}
    """no answer grows as long as dynamic ones change; a Llama with LongRoPE answered otherwise"""
    evidence = (
        Published(
            "https://github.com/ggml-org/llama.cpp",
            "inference in C/C++ with blocks of quantized weights; kernels for AVX2 and Arm NEON",
        ),
    )

    def explain_model(self, case: Case) -> str | None:
        if case.workload.draft and case.model.quantization:
            return "a file of packed weights is served by itself: nobody ran a small model beside one here"
        return super().explain_model(case)

    def explain_device(self, case: Case) -> str | None:
        """On Apple's GPUs files of packed weights alone: MLX reads the plain ones there. Other GPUs' wheels are on no registry."""
        if case.on_cpu:
            return None
        if why := case.explain_missing("llama.cpp"):
            return why
        if not case.model.quantization:
            return "on a Mac it serves GGUF files, and MLX what is not packed"
        return explain_missing_build(self.role, case)

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {**super().effects(case), "engine": case.vendor.engines.get(self.engine, self.engine)}

    def choose_conversion(self, case: Case) -> tuple[str, str]:
        """A GGUF file is copied, its vocabulary made one of numbers."""
        return ("convert-gguf", "gguf_file") if case.model.quantization else (self.conversion, self.leaf)

    def edits(self, case: Case) -> Edits:
        """Threads that wait sleep: beside other programs those that spin take away the processor that they wait for."""
        inherited = super().edits(case).environment
        return Edits(environment=(*inherited, ("OMP_WAIT_POLICY", "PASSIVE")))
