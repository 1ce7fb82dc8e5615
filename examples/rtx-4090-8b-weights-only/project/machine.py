"""Is this the machine that the plan was made for? And what did the run need of it?"""

import os
import sys

import torch

GIB = 1 << 30


def check_machine(planned: dict) -> None:
    """Stop where the plan cannot work; say what else differs."""
    count = torch.cuda.device_count()
    if count == 0:
        sys.exit("This plan needs an NVIDIA GPU, and PyTorch sees none: look at nvidia-smi and CUDA_VISIBLE_DEVICES.")
    if count < planned["gpus"]:
        sys.exit(f"This plan needs {planned['gpus']} GPUs on this machine, and PyTorch sees {count}.")
    gpu = torch.cuda.get_device_properties(int(os.environ.get("LOCAL_RANK", 0)))  # each process has its own
    capability, memory_gib = f"{gpu.major}.{gpu.minor}", gpu.total_memory / GIB
    needed = planned.get("compute_capability", "0.0")  # where nobody could read it
    if (gpu.major, gpu.minor) < tuple(int(part) for part in needed.split(".")):
        sys.exit(
            f"This plan was made for compute capability {needed}, and {gpu.name} has {capability}: "
            "its precision or kernels may be missing. Plan again for this GPU."
        )
    if memory_gib < planned["needs_gib"]:
        sys.exit(f"This plan was made for {planned['needs_gib']} GiB, and {gpu.name} has {memory_gib:.1f}.")
    if capability != needed or abs(memory_gib / planned["memory_gib"] - 1) > 0.05:
        print(f"Planned for {planned['name']}, running on {gpu.name}: speed and memory will differ from PLAN.md.")


def peak_memory() -> dict[str, float]:
    """Peak GPU memory in GiB: of tensors, and with what the allocator keeps."""
    return {
        "peak_memory_gib": torch.cuda.max_memory_allocated() / GIB,
        "peak_reserved_gib": torch.cuda.max_memory_reserved() / GIB,
    }
