from collections.abc import Mapping
from typing import Any, ClassVar

from generator.case.case import Case
from generator.techniques.base import Published
from generator.techniques.cache.engine import EngineCache
from generator.techniques.traits import Trait


class EngineFp8Cache(EngineCache):
    """The engine's pages hold keys and values in 8-bit floating point.

    What it does: twice as many tokens in the same memory, and half of what a long context reads for each token.
    When it loses: for short contexts, whose cache is small beside the weights.
    Known problems: scales are those of the checkpoint, or 1 where it has none; the kernels of boards before Hopper (FlashInfer's,
    Triton's) are others than those of 16 bits.
    """

    name = "engine-fp8"
    quality = 1
    quality_note = "keys and values are rounded to 8 bits"
    needs: ClassVar = {Trait.SERVES_16_BITS: "{other} keeps no cache in 8-bit floating point; only {able} do"}
    evidence = (
        Published(
            "https://docs.vllm.ai/en/latest/features/quantization/quantized_kvcache/",
            "FP8 halves the cache, so that about twice as many tokens are kept; accuracy hardly changes",
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        if why := super().obstacle(case) or case.explain_missing("fp8"):
            return why
        return "the model keeps states, which stay in 16 bits" if case.model.state_elements else None

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {**super().effects(case), "cache_dtype": "float8"}
