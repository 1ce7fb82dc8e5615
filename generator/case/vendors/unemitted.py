"""Accelerators that are planned and priced, and that no project is made for: each says why in its own terms."""

from __future__ import annotations

from generator.case.stacks import NO_BUILD
from generator.case.vendors.vendor import Vendor, has
from hwdetect.types import Device

ABLE = {
    "bf16": has,
    "fp16": lambda device: f"{device.name} has bf16, which is as fast and cannot overflow",
    "fsdp": has,
    "pinned-memory": has,
}
"""what they are priced with: bf16 products, and weights that may be divided"""
DEEPSPEED = {"deepspeed": "DeepSpeed was not looked at there"}
ON_HABANA = (
    "bitsandbytes has one kernel for it, that of NF4 (backends/hpu/ops.py of 0.50), which calls operators of Habana's own torch: "
    "it was not looked at there"
)


def describe_unemitted(
    name: str,
    devices: tuple[tuple[str, str], ...],
    title: str,
    torch_device: str,
    backend: str,
    visible: str,
    why: str,
    *,
    bitsandbytes: str = "bitsandbytes has no kernels for it",
) -> Vendor:
    def explain(device: Device) -> str:
        return why

    return Vendor(
        name=name,
        devices=devices,
        title=title,
        torch_device=torch_device,
        guard=torch_device,
        backend=backend,
        visible_devices=visible,
        choose_build=lambda role, device, driver: NO_BUILD.name,
        abilities=ABLE,
        missing={**DEEPSPEED, "bitsandbytes": bitsandbytes},
        explain_unemitted=explain,
    )


VENDORS = (
    describe_unemitted(
        "aws",
        (("aws", "accelerator"), ("aws", "gpu")),
        "AWS Neuron device",
        "neuron",
        "neuron",
        "NEURON_RT_VISIBLE_CORES",
        "optimum-neuron 0.4.5 is Trainer's way there, with Transformers 4.57 (its metadata), and torch-neuronx and the compiler neuronx-cc from "
        "AWS's own index: this project's code is written for Transformers 5, and graphs of one shape were not compiled",
    ),
    describe_unemitted(
        "habana",
        (("intel", "accelerator"), ("habana", "gpu"), ("habana", "accelerator")),
        "Intel Gaudi",
        "hpu",
        "hccl",
        "HABANA_VISIBLE_MODULES",
        "Gaudi runs Trainer as GaudiTrainer of optimum-habana, whose last release (1.21.2) needs Transformers below 4.56 (its metadata), on the "
        "torch of Habana's own images (vault.habana.ai), which no package registry has: this project's code is written for Transformers 5",
        bitsandbytes=ON_HABANA,
    ),
)
