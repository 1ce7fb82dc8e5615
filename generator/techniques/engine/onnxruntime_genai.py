from typing import ClassVar

from generator.techniques.base import Published
from generator.techniques.engines import CpuEngine
from generator.techniques.traits import Trait


class OnnxruntimeGenai(CpuEngine):
    """ONNX Runtime GenAI: the model as one ONNX graph with fused attention, and products with 8- and 4-bit weights.

    What it does: decodes without Python between the layers, and multiplies packed weights as they are.
    When it loses: for models that its builder does not know; on a CPU it computes in 32 bits, also where there are bf16 units.
    Known problems: the weights are built anew for each format, in an environment with torch.
    """

    name = "onnxruntime-genai"
    engine = "onnxruntime-genai"
    role = "serve-onnxruntime-genai"
    conversion = "convert-onnxruntime-genai"
    leaf = "onnxruntime_genai"
    imports = ("decoding", "engine_thread", "scheduler")
    provides = frozenset({Trait.PACKS_8_BITS, Trait.PACKS_4_BITS})
    model_types = frozenset(
        [
            *("gemma", "gemma2", "granite", "internlm2", "llama", "mistral", "nemotron"),
            *("phi", "phi3", "qwen2", "qwen3"),
        ]
    )
    """text models of onnxruntime_genai 0.18's models/builder.py; that of Gemma 3 reads a name that Transformers 5 keeps by kind of layer
    ("rope_type"), it reads no clip_qkv (OLMo), ends on SmolLM3's layers without rotary embeddings, and LFM2's
    convolutions end in an error of their kernel"""
    windowed = frozenset({"gemma2"})
    """Mistral's prompts that are longer than its window are answered otherwise (0.18)"""
    rotations: ClassVar = {"llama": frozenset({"llama3"})}
    """its builder leaves others out without a word (LlamaModel.make_rope_init: yarn, linear and longrope of a Llama answered otherwise), or
    does not end (yarn of a Qwen2)"""
    evidence = (
        Published(
            "https://onnxruntime.ai/docs/genai/",
            "generation loop, key-value cache and sampling in native code around one graph",
        ),
    )
