"""Well-known models and devices as values, sizes from their public config.json and data sheets."""

from __future__ import annotations

from generator.cost import CostModel
from generator.model import ModelSpec
from hwdetect.catalog.cpu import NARROW
from hwdetect.types import Device

GIB = 1 << 30
A100 = Device(
    id="a100-sxm-80gb",
    vendor="nvidia",
    name="A100-SXM4-80GB",
    architecture="ampere",
    memory_bytes=80 * GIB,
    memory_bytes_per_s=2.039e12,
    peak_flops=(("fp32", 19.5e12), ("tf32", 156e12), ("fp16", 312e12), ("bf16", 312e12)),
    link_bytes_per_s=300e9,
    pcie_generation=4,
    pcie_width=16,
)
CPU2 = Device(
    id="cpu",
    vendor="intel",
    name="2 cores, AVX-512",
    kind="cpu",
    peak_flops=(("fp32", 320e9),),
    vector_flops=(("fp32", 320e9), (NARROW, 160e9)),
    memory_bytes_per_s=17e9,
    basis="derived",
)


def spec(name: str, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, params: int, **more):
    linear = layers * (2 * hidden * hidden + 2 * hidden * (hidden // heads) * kv_heads)
    linear += layers * hidden * ffn * (3 if more.get("gated", True) else 2) * max(more.get("experts", 1), 1)
    return ModelSpec(
        name=name,
        model_type=name,
        architecture=None,
        kind=more.pop("kind", "decoder"),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=hidden // heads,
        ffn=ffn,
        vocab=vocab,
        params=params,
        embedding_params=vocab * hidden,
        linear_params=min(linear, params),
        **more,
    )


MISTRAL_7B = spec("mistral", 32, 4096, 32, 8, 14336, 32000, 7_241_732_096)
LLAMA2_7B = spec("llama", 32, 4096, 32, 32, 11008, 32000, 6_738_415_616)
LLAMA2_70B = spec("llama", 80, 8192, 64, 8, 28672, 32000, 68_976_648_192)
TINY = spec("llama", 4, 256, 4, 2, 704, 4096, 4 * (2 * 256**2 + 2 * 256 * 128 + 3 * 256 * 704) + 2 * 4096 * 256)
MIXTRAL = spec(
    "mixtral", 32, 4096, 32, 8, 14336, 32000, 46_702_792_704, experts=8, experts_per_token=2, expert_ffn=14336
)
BERT = spec("bert", 12, 768, 12, 12, 3072, 30522, 109_482_240, gated=False, kind="encoder")


def model(what: ModelSpec, device: Device = A100, **more) -> CostModel:
    memory = more.pop("device_memory_bytes", device.memory_bytes or 16 * GIB)
    return CostModel(device, what, device_memory_bytes=memory, **more)
