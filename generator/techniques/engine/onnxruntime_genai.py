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
            *("gemma", "gemma2", "gemma3_text", "granite", "internlm2", "lfm2", "llama", "mistral", "nemotron", "olmo"),
            *("phi", "phi3", "qwen2", "qwen3", "smollm3"),
        ]
    )
    """text models of onnxruntime_genai 0.18's models/builder.py"""
    evidence = (
        Published(
            "https://onnxruntime.ai/docs/genai/",
            "generation loop, key-value cache and sampling in native code around one graph",
        ),
    )
