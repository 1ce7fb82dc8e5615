"""Intel's GPUs: "xpu", which is part of PyTorch itself (the Extension for PyTorch ended with 2.8)."""

from __future__ import annotations

from generator.case.stacks import choose_build_of
from generator.case.vendors.vendor import Container, Vendor, has
from hwdetect.types import Device

REACHED = 0.944
"""of the memory of a board without HBM, as many drivers report it; that Debian 13's does is assumed: 15,473 of 16,384 MiB on an A770 (what
`get_device_properties` prints), 11.33 of 12 GiB on a B580 (https://github.com/intel/llm-scaler/issues/305), 30.3 on "BMG", of 32
(https://github.com/intel/torch-xpu-ops/issues/3155). Others report 24,480 of 24,576 MiB on a B60
(https://github.com/intel/torch-xpu-ops/issues/5258), and 65,520 of 65,536 MiB of a tile of a Max 1550"""
WITH_HBM = ("xe-hpc",)

GROUP_FILE = "/dev/dri/renderD128"


def contain(visible: str | None, device: Device) -> Container:
    """The render nodes, by the group that owns them."""
    chosen = (f"--env ZE_AFFINITY_MASK={visible}",) if visible else ()
    return Container(
        flags=("--device /dev/dri", f'--group-add "$(stat -c %g {GROUP_FILE})"', *chosen),
        compose={
            "devices": ["/dev/dri"],
            "group_add": [f"${{RENDER_GROUP:?the number that stat -c %g {GROUP_FILE} prints}}"],
        },
        compose_environment=(f"ZE_AFFINITY_MASK={visible}",) if visible else (),
    )


G31 = ("arc-pro-b65", "arc-pro-b70")
"""the larger Battlemage, of 2026: an image (of Ubuntu 24.04) showed no B70 until it had Intel's own packages; Debian 13's was not tried
(https://github.com/mudler/LocalAI/issues/9540); an older libze-intel-gpu1 beside a newer libze1 ends PyTorch
(https://github.com/pytorch/pytorch/issues/179891)"""


def explain_doubt(device: Device) -> str | None:
    if device.id not in G31:
        return None
    return (
        f"{device.name} is younger than Debian 13's drivers, which the image has: where PyTorch sees no GPU in it, build it with Intel's own "
        "packages (https://dgpu-docs.intel.com/driver/client/overview.html)"
    )


def reach_memory(device: Device, memory_bytes: int) -> int:
    return memory_bytes if device.architecture in WITH_HBM else round(memory_bytes * REACHED)


VENDORS = (
    Vendor(
        name="intel",
        devices=(("intel", "gpu"),),
        title="Intel GPU",
        torch_device="xpu",
        guard="xpu",
        backend="xccl",
        collectives="oneCCL",
        triton_compiler="g++",
        visible_devices="ZE_AFFINITY_MASK",
        choose_build=lambda role, device, driver: choose_build_of("xpu", role, device.name),
        abilities={
            "bf16": has,
            "fp16": lambda device: f"{device.name} has bf16, which is as fast and cannot overflow",
            "tf32": lambda device: "TrainingArguments takes tf32 on CUDA builds alone",
            "fp8": lambda device: f"{device.name} multiplies no 8-bit floating point",
            "flash": lambda device: "which kernel XPU's attention takes was not seen: the scores are counted as held",
            "hub-flash": lambda device: "the kernels hub is off in this stack",
            "varlen": lambda device: "PyTorch's flash kernel of rows was checked for CUDA alone",
            "compile": lambda device: "torch.compile on XPU was not run, and no run of it was published that was read",
            "compiled-decode": lambda device: "the compiled decoding step was not run on XPU",
            "triton": has,
            "liger": lambda device: "Liger on XPU was not run",
            "fsdp": has,
            "pinned-memory": has,
        },
        missing={
            "deepspeed": "DeepSpeed reaches XPU by Intel's Extension for PyTorch, which ended with 2.8",
        },
        kubernetes="gpu.intel.com/xe",
        group_file=GROUP_FILE,
        contain=contain,
        reach_memory=reach_memory,
        explain_doubt=explain_doubt,
    ),
)
