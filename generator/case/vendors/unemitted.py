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
DEEPSPEED = {"deepspeed": "DeepSpeed was not looked at there", "bitsandbytes": "bitsandbytes has no kernels for it"}


def describe_unemitted(
    name: str, devices: tuple[tuple[str, str], ...], title: str, torch_device: str, backend: str, visible: str, why: str
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
        missing=DEEPSPEED,
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
        "Neuron runs graphs that neuronx-cc compiled for one shape, by optimum-neuron and a torch of AWS's own index: that stack is "
        "not pinned here, and its compiler was not run",
    ),
    describe_unemitted(
        "habana",
        (("intel", "accelerator"), ("habana", "gpu"), ("habana", "accelerator")),
        "Intel Gaudi",
        "hpu",
        "hccl",
        "HABANA_VISIBLE_MODULES",
        "Gaudi runs Trainer as GaudiTrainer of optimum-habana, which pins an older Transformers, on the torch of Habana's own images "
        "(vault.habana.ai): that stack is not pinned here",
    ),
    describe_unemitted(
        "huawei",
        (("huawei", "accelerator"), ("huawei", "gpu")),
        "Ascend NPU",
        "npu",
        "hccl",
        "ASCEND_RT_VISIBLE_DEVICES",
        "Ascend runs PyTorch by torch-npu, of one version with torch and with the CANN toolkit of the machine: that stack is not "
        "pinned here",
    ),
)
