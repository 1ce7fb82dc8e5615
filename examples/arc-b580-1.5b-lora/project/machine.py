"""Is this the machine that the plan was made for? And what did the run need of it?"""

import os
import sys

import torch

GIB = 1 << 30


def check_machine(planned: dict) -> None:
    """Stop where the plan cannot work; say what else differs."""
    count = torch.xpu.device_count()
    if count == 0:
        sys.exit("This plan needs an Intel GPU, and PyTorch sees none: look at xpu-smi, ZE_AFFINITY_MASK and /dev/dri.")
    if count < planned["gpus"]:
        sys.exit(f"This plan needs {planned['gpus']} GPUs on this machine, and PyTorch sees {count}.")
    gpu = torch.xpu.get_device_properties(int(os.environ.get("LOCAL_RANK", 0)))  # each process has its own
    memory_gib = gpu.total_memory / GIB
    if memory_gib < planned["needs_gib"]:
        sys.exit(f"This plan was made for {planned['needs_gib']} GiB, and {gpu.name} has {memory_gib:.1f}.")
    if not torch.xpu.is_bf16_supported(including_emulation=False):
        print(f"{gpu.name} only emulates bf16: where the plan uses it, it is slow here.")
    if abs(memory_gib / planned["memory_gib"] - 1) > 0.1:  # drivers differ in how much they keep
        print(f"Planned for {planned['name']}, running on {gpu.name}: speed and memory will differ from PLAN.md.")


def peak_memory() -> dict[str, float]:
    """Peak GPU memory in GiB: of tensors, and with what the allocator keeps."""
    return {
        "peak_memory_gib": torch.xpu.max_memory_allocated() / GIB,
        "peak_reserved_gib": torch.xpu.max_memory_reserved() / GIB,
    }
