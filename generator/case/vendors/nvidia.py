"""NVIDIA's GPUs: CUDA. What they can do follows from the compute capability."""

from __future__ import annotations

from generator.case.stacks import NO_BUILD, choose_cuda_build, list_builds, parse_version
from generator.case.vendors.vendor import ABILITIES, TENSOR_CORE_MULTIPLE, Container, Rule, Vendor, has
from hwdetect.types import Device


def parse_capability(device: Device) -> tuple[int, int]:
    """(0, 0) where it could not be read."""
    major, _, minor = (device.compute_capability or "0.0").partition(".")
    return int(major), int(minor or 0)


def since(major: int, minor: int, why: str) -> Rule:
    """An ability of this compute capability and later. ``why`` may name {device} and what it {has}."""

    def explain(device: Device) -> str | None:
        if parse_capability(device) >= (major, minor):
            return None
        return why.format(device=device.name, has=device.compute_capability)

    return explain


def among(capabilities: tuple[tuple[int, int], ...], why: str) -> Rule:
    """An ability of these compute capabilities alone."""
    return lambda device: None if parse_capability(device) in capabilities else why


def explain_fp16(device: Device) -> str | None:
    capability = parse_capability(device)
    if capability < (7, 0):
        return f"fp16 tensor cores begin with compute capability 7.0, {device.name} has {device.compute_capability}"
    return f"{device.name} has bf16, which is as fast and cannot overflow" if capability >= (8, 0) else None


# torch/cuda/__init__.py runs code of 8.0 on no 8.7 (https://github.com/nvidia-holoscan/holohub/pull/1687).
BETWEEN_WHEELS = {
    "8.7": "on JetPack 7.2 (CUDA 13) 2.11 was seen to run; an older JetPack needs NVIDIA's own torch for Jetson. vLLM's wheel for aarch64 "
    "and CUDA 13 has them (https://github.com/vllm-project/vllm/pull/39233 lists what it holds), and was not run on one here"
}


def explain_wheels(device: Device) -> str | None:
    capability = device.compute_capability
    if capability not in BETWEEN_WHEELS:
        return None
    made = f"PyTorch's wheels have no kernels made for compute capability {capability}, and PyTorch warns of it"
    return f"{made}: {BETWEEN_WHEELS[capability]}"


def explain_old(device: Device) -> str | None:
    """Boards from before the oldest that a build of torch has kernels for."""
    oldest = min(
        (build.min_capability for build in list_builds("train").values() if build.min_capability), key=parse_version
    )
    if device.compute_capability is None or parse_version(device.compute_capability) >= parse_version(oldest):
        return None
    return f"PyTorch's wheels of today begin with compute capability {oldest}, and {device.name} has {device.compute_capability}"


TEGRA = ("7.2", "8.7", "11.0")
"""compute capabilities of Jetson boards, whose GPU is a part of the host's chip and has a driver of its own"""


def explain_growing_segments(device: Device) -> str | None:
    """On a Jetson the first allocation ends with "CUDA driver error: out of memory", whatever is free; on GB10 they work
    (https://github.com/unslothai/unsloth-zoo/pull/1235)."""
    tegra = device.compute_capability in TEGRA
    return f"{device.name} maps no segments that grow: the first one ends the run" if tegra else None


def contain(visible: str | None, device: Device) -> Container:
    """By NVIDIA's container toolkit. Where the driver is Tegra's it refuses --gpus, and asks for its runtime
    (https://github.com/NVIDIA/nvidia-container-toolkit, cmd/nvidia-container-runtime-hook/main.go)."""
    if device.compute_capability in TEGRA:
        shown = (f"NVIDIA_VISIBLE_DEVICES={visible or 'all'}", "NVIDIA_DRIVER_CAPABILITIES=compute,utility")
        return Container(
            flags=("--runtime nvidia", " ".join(f"--env {variable}" for variable in shown)),
            compose={"runtime": "nvidia"},
            compose_environment=shown,
        )
    chosen = {"device_ids": visible.split(",")} if visible else {"count": "all"}
    reserved = {"driver": "nvidia", "capabilities": ["gpu"]} | chosen
    return Container(
        flags=(f"--gpus '\"device={visible}\"'" if visible else "--gpus all",),
        compose={"deploy": {"resources": {"reservations": {"devices": [reserved]}}}},
    )


FREE_SHARE = 0.83
"""of a memory that the host shares, free after the start: 101.3 of 121.69 GiB on DGX Sparks without a desktop
(https://github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/47)"""

KEPT_BYTES, KEPT_SHARE, MOST_KEPT = 400 << 20, 0.002, 0.05
"""What the driver keeps of a board, which nvidia-smi lists as reserved within its total, and PyTorch does not report: in MiB 406 of 8192
(RTX 2070), 397 of 10,240 (3080), 447 of 15,360 (T4), 450 of 24,576 (3090), 517 of 40,960 (A100), 608 of 46,068 (L40S), 479 of 81,559 (H100),
727 of 183,359 (B200), 946 of 284,208 (GB300), by drivers 570 to 595 (recordings of tests/hwdetect/machines); PyTorch told of 615 of 143,771
less on an H200 (benchmarks/results/gpu_day_h200.json). Those before 525 keep some 130 MiB less. Of smaller boards: assumed"""


def reach_memory(device: Device, memory_bytes: int) -> int:
    kept = KEPT_BYTES + KEPT_SHARE * memory_bytes
    return round(memory_bytes - min(kept, MOST_KEPT * memory_bytes))


VENDORS = (
    Vendor(
        name="nvidia",
        devices=(("nvidia", "gpu"),),
        title="NVIDIA GPU",
        torch_device="cuda",
        guard="cuda",
        backend="nccl",
        collectives="NCCL",
        visible_devices="CUDA_VISIBLE_DEVICES",
        set_beside=lambda count: "CUDA_DEVICE_ORDER=PCI_BUS_ID",
        choose_build=lambda role, device, driver: (
            NO_BUILD.name
            if explain_old(device)
            else choose_cuda_build(role, device.compute_capability, driver, device.name)
        ),
        explain_unemitted=explain_old,
        explain_doubt=explain_wheels,
        abilities={
            "bf16": since(8, 0, "bf16 needs compute capability 8.0 or more, {device} has {has}"),
            "fp16": explain_fp16,
            "tf32": since(8, 0, "TF32 needs compute capability 8.0 or more, {device} has {has}"),
            "fp8": since(
                8, 9, "8-bit floating point needs compute capability 8.9 (Ada, Hopper, Blackwell), {device} has {has}"
            ),
            # Before Ampere half-precision attention with grouped keys falls back to the kernel that makes all scores
            # (https://github.com/huggingface/transformers/issues/48633).
            "flash": since(8, 0, ABILITIES["flash"]),
            # first in PyTorch's order where cuDNN is newer than 9.15 (torch 2.11 and 2.13, check_prefer_cudnn_attention of sdp_utils.cpp)
            "cudnn-attention": among(((9, 0), (10, 0)), ABILITIES["cudnn-attention"]),
            # torch's sdp_utils.cpp takes it from 5.0 on, in 16 and in 32 bits, where queries have as many heads as keys
            "efficient": since(5, 0, ABILITIES["efficient"]),
            "flash-check": has,
            "hub-flash": since(8, 0, ABILITIES["hub-flash"]),
            "varlen": since(8, 0, ABILITIES["varlen"]),
            "wide-backward": among(((8, 0), (9, 0)), ABILITIES["wide-backward"]),
            "compile": since(8, 0, "torch.compile gains little before Ampere; {device} has {has}"),
            "compiled-decode": since(7, 0, "Triton needs compute capability 7.0"),
            "graphs": has,
            "triton": has,
            "tinygemm": since(8, 0, ABILITIES["tinygemm"]),
            "liger": since(7, 5, ABILITIES["liger"]),
            "torch.cuda": has,
            "fsdp": has,
            "pinned-memory": has,
            "numa-binding": has,
            "growing-segments": explain_growing_segments,
            "nvcc": has,
        },
        pad_to_multiple_of=TENSOR_CORE_MULTIPLE,
        kubernetes="nvidia.com/gpu",
        contain=contain,
        reach_memory=reach_memory,
        share_memory=lambda device, memory_bytes: round(memory_bytes * FREE_SHARE),
        more_memory="end what else runs there: the system, its files and this run's host side have the rest",
        reports_shared_memory=True,
        recommended=True,
    ),
)
