"""Public models by the sizes of their config.json, as Transformers configurations of any depth, and as the planner reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import transformers

from generator.cost.shape import Shape, build_shape
from generator.model import ModelSpec, describe


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """``layers`` is the real depth, ``period`` the blocks after which their kinds repeat."""

    kind: str
    layers: int
    sizes: dict[str, object]
    period: int = 1
    classifier: bool = False
    attention: str = "sdpa"

    def config(self, layers: int):
        depth = {"GPT2Config": "n_layer", "DistilBertConfig": "n_layers"}.get(self.kind, "num_hidden_layers")
        return getattr(transformers, self.kind)(**self.sizes, **{depth: layers})

    def spec(self, layers: int | None = None) -> ModelSpec:
        return describe(self.config(layers or self.layers).to_dict(), self.kind)

    def shape(self, layers: int | None = None) -> Shape:
        return build_shape(self.spec(layers), "text-classification" if self.classifier else "causal-lm", 2)


def _sizes(hidden: int, ffn: int, heads: int, vocab: int, kv_heads: int | None = None, **more) -> dict[str, object]:
    grouped = {} if kv_heads is None else {"num_key_value_heads": kv_heads}
    sizes = {"hidden_size": hidden, "intermediate_size": ffn, "num_attention_heads": heads, "vocab_size": vocab}
    return {**sizes, **grouped, **more}


def _made(kind: str, layers: int, *sizes: int, **more) -> Architecture:
    known = {name: more.pop(name) for name in ("period", "classifier", "attention") if name in more}
    return Architecture(kind=kind, layers=layers, sizes=_sizes(*sizes, **more), **known)


GPT2 = {"n_embd": 1024, "n_head": 16, "vocab_size": 50257, "n_positions": 4096}
OPT = {
    "hidden_size": 2048,
    "ffn_dim": 8192,
    "num_attention_heads": 32,
    "vocab_size": 50272,
    "word_embed_proj_dim": 2048,
    "max_position_embeddings": 4096,
}
DISTILBERT = {"dim": 768, "hidden_dim": 3072, "n_heads": 12, "vocab_size": 30522, "max_position_embeddings": 2048}
ARCHITECTURES: dict[str, Architecture] = {
    "llama-3-8b": _made("LlamaConfig", 32, 4096, 14336, 32, 128256, 8),
    "llama-2-7b": _made("LlamaConfig", 32, 4096, 11008, 32, 32000, 32),
    "mistral-7b": _made("MistralConfig", 32, 4096, 14336, 32, 32000, 8, sliding_window=4096),
    "mistral-7b-window": _made("MistralConfig", 32, 4096, 14336, 32, 32000, 8, sliding_window=1024),
    "qwen2-1.5b": _made("Qwen2Config", 28, 1536, 8960, 12, 151936, 2, tie_word_embeddings=True),
    "qwen3-8b": _made("Qwen3Config", 36, 4096, 12288, 32, 151936, 8, head_dim=128),
    "gemma-2b": _made("GemmaConfig", 18, 2048, 16384, 8, 256000, 1, head_dim=256),
    "gemma-2-2b": _made("Gemma2Config", 26, 2304, 9216, 8, 256000, 4, head_dim=256, attention="eager"),
    "gemma-3-4b": _made("Gemma3TextConfig", 34, 2560, 10240, 8, 262208, 4, head_dim=256, sliding_window=1024, period=6),
    "phi-3-mini": _made("Phi3Config", 32, 3072, 8192, 32, 32064, 32, pad_token_id=0),
    "granite-2b": _made("GraniteConfig", 40, 2048, 8192, 32, 49152, 8),
    "olmo-2-7b": _made("Olmo2Config", 32, 4096, 11008, 32, 100352, 32),
    "smollm3-3b": _made("SmolLM3Config", 36, 2048, 11008, 16, 128256, 4, pad_token_id=0),
    "mixtral-8x7b": _made("MixtralConfig", 32, 4096, 14336, 32, 32000, 8, num_local_experts=8),
    "llama-4-scout": _made(
        "Llama4TextConfig",
        48,
        5120,
        8192,
        40,
        202048,
        8,
        head_dim=128,
        num_local_experts=16,
        intermediate_size_mlp=16384,
        interleave_moe_layer_step=1,
    ),
    "qwen3-30b-a3b": _made(
        "Qwen3MoeConfig",
        48,
        2048,
        6144,
        32,
        151936,
        4,
        head_dim=128,
        moe_intermediate_size=768,
        num_experts=128,
        num_experts_per_tok=8,
    ),
    "pythia-1.4b": _made("GPTNeoXConfig", 24, 2048, 8192, 16, 50304),
    "phi-2": _made("PhiConfig", 32, 2560, 10240, 32, 51200),
    "stablelm-3b": _made("StableLmConfig", 32, 2560, 6912, 32, 50304, 32),
    "starcoder2-3b": _made("Starcoder2Config", 30, 3072, 12288, 24, 49152, 2),
    "gpt2-medium": Architecture(kind="GPT2Config", layers=24, sizes=GPT2),
    "opt-1.3b": Architecture(kind="OPTConfig", layers=24, sizes=OPT),
    "bert-base": _made("BertConfig", 12, 768, 3072, 12, 30522, max_position_embeddings=2048, classifier=True),
    "roberta-large": _made("RobertaConfig", 24, 1024, 4096, 16, 50265, max_position_embeddings=2050, classifier=True),
    "modernbert-base": _made("ModernBertConfig", 22, 768, 1152, 12, 50368, period=3, classifier=True),
    "distilbert": Architecture(kind="DistilBertConfig", layers=6, sizes=DISTILBERT, classifier=True),
}


def stepped(architecture: Architecture, trace: Callable[[int], float]) -> float:
    """``trace`` of 2 and of 4 blocks (or as many periods), on to the real depth: exact where it grows by the block."""
    two, four = (trace(n * max(2, architecture.period)) for n in (1, 2))
    return four + (four - two) * (architecture.layers / max(2, architecture.period) - 2)
