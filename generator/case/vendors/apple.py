"""Apple's chips: "mps", from the plain wheel for macOS. The GPU takes the host's memory, and not all of it."""

from __future__ import annotations

from generator.case.stacks import choose_build_of
from generator.case.vendors.vendor import Vendor, has
from hwdetect.types import Device

WITHOUT_BF16 = ("m1", "m2")
SMALL, SMALL_SHARE, SHARE = 16 << 30, 2 / 3, 0.75
"""what Metal recommends at most: 10.67 of 16 GB (https://github.com/exo-explore/exo/pull/1672), 17.76 of 24 GiB
(https://github.com/sgl-project/sglang/pull/29949), 75 % (https://github.com/gpustack/gpustack/issues/1375); 107.5 of 128 GiB on
the largest (https://github.com/antirez/ds4/pull/893)"""
ONE = "Metal is one device, and torch.distributed has no backend for it"
"""gloo takes tensors of CPUs and CUDA alone (https://github.com/pytorch/pytorch/issues/189853), so that two Macs train nothing together"""


def share_memory(device: Device, memory_bytes: int) -> int:
    return round(memory_bytes * (SMALL_SHARE if memory_bytes <= SMALL else SHARE))


def explain_bf16(device: Device) -> str | None:
    emulated = device.architecture in WITHOUT_BF16
    return f"{device.name} has no bf16 arithmetic: Metal emulates it" if emulated else None


def explain_fp16(device: Device) -> str | None:
    return None if explain_bf16(device) else f"{device.name} has bf16, which is as fast and cannot overflow"


VENDORS = (
    Vendor(
        name="apple",
        devices=(("apple", "gpu"),),
        title="Apple GPU",
        torch_device="mps",
        guard="mps",
        backend="gloo",
        choose_build=lambda role, device, driver: choose_build_of("macos", role, device.name),
        abilities={
            "bf16": explain_bf16,
            "fp16": explain_fp16,
            "flash": lambda device: "Metal's attention makes all scores in training",
            "fsdp": lambda device: ONE,
            "pinned-memory": lambda device: "Metal shares the host's memory: PyTorch pins none of it",
            "compile": lambda device: "torch.compile for Metal is a prototype",
            "llama.cpp": has,
            "compiled-decode": lambda device: "torch.compile for Metal is a prototype",
        },
        missing={
            "bitsandbytes": "bitsandbytes 0.50 takes its Metal kernels from the hub, and without them runs slow PyTorch code",
            "deepspeed": f"DeepSpeed divides over several devices: {ONE}",
            "liger-kernel": "Liger's kernels need Triton, which has no Metal",
            "torchao": "torchao's optimizers compile their step, and torch.compile for Metal is a prototype",
        },
        # what Metal lacks runs on the CPU, with a warning, in the place of an error
        environment=(("PYTORCH_ENABLE_MPS_FALLBACK", "1"),),
        engines={"llama-cpp": "llama-cpp-metal"},
        contain=None,
        why_alone=ONE,
        share_memory=share_memory,
        more_memory="`sudo sysctl iogpu.wired_limit_mb=...` raises it",
    ),
)
