from collections.abc import Mapping
from typing import Any, ClassVar

from generator.case.case import Case
from generator.techniques.base import Published
from generator.techniques.engines import CpuEngine
from generator.techniques.traits import Trait


class Ctranslate2(CpuEngine):
    """CTranslate2: Transformer models in C++ with fused operators, and products with 8-bit weights.

    What it does: decodes in native code, and multiplies 8-bit weights with activations of 8 bits.
    When it loses: a batch begins and ends together, and prompts of unequal length are read in it token by token from where the
    shortest ends.
    Known problems: no 4 bits; all numbers are drawn from one seed, so that of a request is not kept.
    """

    name = "ctranslate2"
    engine = "ctranslate2"
    role = "serve-ctranslate2"
    conversion = "convert-ctranslate2"
    leaf = "ctranslate2"
    provides = frozenset({Trait.PACKS_8_BITS})
    model_types = frozenset(["gemma", "llama", "mistral", "qwen2", "qwen3"])
    """decoders of ctranslate2 4.8's converters/transformers.py whose tokens, of small random models, were those of Transformers. Gemma 2's
    were not (its scores are capped), Gemma 3's are of layers with windows, and the converter of Phi-3 reads a name that Transformers 5
    has not any more ("type")"""
    rotations: ClassVar = {"": frozenset({"linear"})}
    """Llama 3's are written, and its log-probabilities are off by 0.12 after 90 tokens (4.8.5)"""
    windowed = frozenset()
    """a prompt longer than the window ends in "buffer to copy is of size 47 but current storage size is 16" (4.8.5)"""
    request_only = (
        "it batches requests that come together alone, and two engines of continuous batching run the same models"
    )
    evidence = (
        Published(
            "https://github.com/OpenNMT/CTranslate2",
            "weights quantization, layer fusion and batch reordering accelerate Transformer models on CPU and GPU",
        ),
    )

    def effects(self, case: Case) -> Mapping[str, Any]:
        # MKL's packed weights beside the loaded ones; in 32 bits the emitted engine.py takes oneDNN
        packs = case.on_cpu and case.hardware.cpu.vendor == "GenuineIntel"
        return {**super().effects(case), "packed_copies": 2.0 if packs else 1.0}
