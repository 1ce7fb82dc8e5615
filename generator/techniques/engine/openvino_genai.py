from collections.abc import Mapping
from typing import Any, ClassVar

from generator.case.case import Case
from generator.techniques.base import Published
from generator.techniques.engines import CpuEngine
from generator.techniques.precision.bf16 import explain_missing_bf16
from generator.techniques.traits import Trait


def computes_in_bf16(case: Case) -> bool:
    """Plain weights too, by tiles: with AVX512_BF16 alone its prompts took longer than in 32 bits; and one thread's products divide by
    zero (2026.4, SmolLM2-135M on a Xeon with AMX)."""
    tiles = "amx_bf16" in (case.hardware.cpu.isa_features or ())
    return case.on_cpu and tiles and (case.hardware.cpu.budget or 1) > 1


class OpenvinoGenai(CpuEngine):
    """OpenVINO GenAI: one compiled graph, a paged cache, continuous batching, products with 8- and 4-bit weights.

    What it does: reads prompts in parts beside answers that go on; between rounded weights it computes in bf16 where the processor does,
    and between plain ones where that has tiles (AMX) and the checkpoint's format may be bf16.
    When it loses: in time to convert; on CPUs that are not Intel's its kernels are the general ones.
    Known problems: the graph is Transformers' own export, which takes minutes and twice the model's memory.
    """

    name = "openvino-genai"
    engine = "openvino-genai"
    role = "serve-openvino-genai"
    conversion = "convert-openvino-genai"
    leaf = "openvino_genai"
    imports = ("engine_process", "engine_thread", "openvino_steps")
    excludes: ClassVar = {Trait.FLOAT16_ARITHMETIC: "{other} is not of this engine: it computes in 32 bits, or in bf16"}
    adds = 10
    """its converter's environment is one more, and takes minutes: it is to be faster by as much"""
    provides = frozenset({Trait.PACKS_8_BITS, Trait.PACKS_4_BITS})
    model_types = frozenset(["llama", "mistral", "qwen2", "qwen3", "smollm3"])
    """that decompose into a step by Transformers 5.23's exporter alike; Llama was run, its relatives are built of the same modules"""
    windowed = frozenset()
    """its paged attention took the whole of a prompt that is longer than Mistral's window (2026.4)"""
    rotations: ClassVar = {"": frozenset({"linear", "llama3", "yarn"})}
    """those that are the same for texts of any length: torch.export does not trace the others (dynamic), or the longest text of a batch
    turns the keys of all (longrope)"""
    evidence = (
        Published(
            "https://openvinotoolkit.github.io/openvino.genai/",
            "continuous batching with a paged cache and prefix caching, on CPUs too",
        ),
    )

    def traits(self, case: Case) -> frozenset[Trait]:
        return self.provides - {Trait.COMPUTES_IN_32_BITS} if computes_in_bf16(case) else self.provides

    def effects(self, case: Case) -> Mapping[str, Any]:
        # KV_CACHE_PRECISION of the emitted engine.py
        halves = {} if explain_missing_bf16(case) else {"packed_cache_dtype": "bfloat16"}
        return {**super().effects(case), **halves}
