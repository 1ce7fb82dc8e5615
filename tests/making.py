"""Cases for tests of the engine: hand-made devices and models, so that no catalogue change moves a test."""

from __future__ import annotations

from dataclasses import replace

from generator.case import stacks
from generator.case.case import Case
from generator.case.workload import Workload
from generator.cost import CostModel
from generator.model import ModelSpec, describe
from hwdetect.types import Cpu, Device, Hardware, Memory

GIB = 1 << 30
TERA = 1e12


def gpu(capability="9.0", memory_gib=80.0, tflops=989.0, bandwidth=3.35e12, name="Test GPU", **rates) -> Device:
    sm = tuple(int(x) for x in capability.split("."))
    peak = {"fp32": tflops / 15, "fp16": tflops}
    if sm >= (8, 0):
        peak |= {"bf16": tflops, "tf32": tflops / 2}
    return Device(
        id="test-gpu",
        vendor="nvidia",
        name=name,
        architecture="test",
        compute_capability=capability,
        memory_bytes=int(memory_gib * GIB),
        memory_bytes_per_s=bandwidth,
        peak_flops=tuple((k, v * TERA) for k, v in (peak | rates).items()),
        vector_flops=(("fp32", tflops / 15 * TERA),),
        pcie_generation=4,
        pcie_width=16,
        sources=(("*", "made for the test"),),
    )


H100, A100, T4, V100 = (
    gpu("9.0", 80, 989, 3.35e12, "NVIDIA H100"),
    gpu("8.0", 80, 312, 2.04e12, "NVIDIA A100"),
    gpu("7.5", 15, 65, 0.32e12, "Tesla T4"),
    gpu("7.0", 16, 125, 0.9e12, "Tesla V100"),
)


def cpu_device(cores=16, memory_gib=64.0, bf16=False) -> Device:
    fp32 = cores * 64e9
    return Device(
        id="cpu",
        vendor="intel",
        name="Test CPU",
        kind="cpu",
        memory_bytes=int(memory_gib * GIB),
        memory_bytes_per_s=100e9,
        peak_flops=(("fp32", fp32), ("bf16", fp32 * 2 if bf16 else fp32 / 3)),
        vector_flops=(("fp32", fp32),),
        basis="assumed",
        sources=(("*", "made for the test"),),
    )


def llama(hidden=4096, layers=32, heads=32, kv_heads=8, ffn=14336, vocab=128256, **more) -> ModelSpec:
    """Llama-3.1-8B, or another size of it."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    return describe(config | more, "test/llama")


SMALL = {"hidden": 512, "layers": 8, "heads": 8, "kv_heads": 8, "ffn": 1408, "vocab": 32000}


def case(
    device: Device = H100,
    model: ModelSpec | None = None,
    features=("avx2", "avx512f"),
    cores=16,
    host_gib=256,
    devices=1,
    nodes=1,
    disks=(),
    **workload,
) -> Case:
    told = {"seq_len": 2048, "global_batch": 32} | workload
    on_cpu = device.kind == "cpu"
    return Case(
        hardware=Hardware(
            cpu=Cpu(
                architecture="x86_64",
                cores=cores,
                cpus_online=cores,
                cpus_allowed=cores,
                budget=cores,
                isa_features=tuple(features),
            ),
            memory=Memory(total_bytes=device.memory_bytes if on_cpu else host_gib * GIB),
            disks=disks,
        ),
        device=device,
        device_memory_bytes=device.memory_bytes,
        model=model or llama(),
        workload=Workload(**told),
        stack=stacks.load_stack("train", "cpu" if on_cpu else "cu130"),
        devices_per_node=devices,
        nodes=nodes,
    )


def cost(of: Case) -> CostModel:
    from generator.cost.of_case import build_cost_model

    return build_cost_model(of)


def with_memory(of: Case, gib: float) -> Case:
    size = int(gib * GIB)
    return replace(of, device=replace(of.device, memory_bytes=size), device_memory_bytes=size)


def with_host(of: Case, gib: float) -> Case:
    """A CPU's own memory stays."""
    if of.device.kind == "cpu":
        return of
    return replace(of, hardware=replace(of.hardware, memory=replace(of.hardware.memory, total_bytes=int(gib * GIB))))
