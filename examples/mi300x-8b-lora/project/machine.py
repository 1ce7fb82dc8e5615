"""Is this the machine that the plan was made for? And what did the run need of it?"""

import os
import sys

import torch

GIB = 1 << 30


def check_machine(planned: dict) -> None:
    """Stop where the plan cannot work; say what else differs."""
    if torch.version.hip is None:
        sys.exit(f"This plan needs PyTorch for ROCm, and this is {torch.__version__}: `make setup` installs it.")
    count = torch.cuda.device_count()  # PyTorch calls AMD's GPUs "cuda" too
    if count == 0:
        sys.exit("This plan needs an AMD GPU, and PyTorch sees none: look at amd-smi and HIP_VISIBLE_DEVICES.")
    if count < planned["gpus"]:
        sys.exit(f"This plan needs {planned['gpus']} GPUs on this machine, and PyTorch sees {count}.")
    gpu = torch.cuda.get_device_properties(int(os.environ.get("LOCAL_RANK", 0)))  # each process has its own
    target, memory_gib = gpu.gcnArchName.split(":")[0], gpu.total_memory / GIB
    if memory_gib < planned["needs_gib"]:
        sys.exit(f"This plan was made for {planned['needs_gib']} GiB, and {gpu.name} has {memory_gib:.1f}.")
    if target not in planned["targets"]:
        sys.exit(
            f"This plan was made for {' or '.join(planned['targets'])}, and {gpu.name} is {target}: "
            "its precision or kernels may be missing. Plan again for this GPU."
        )
    if abs(memory_gib / planned["memory_gib"] - 1) > 0.05:
        print(f"Planned for {planned['name']}, running on {gpu.name}: speed and memory will differ from PLAN.md.")


def peak_memory() -> dict[str, float]:
    """Peak GPU memory in GiB: of tensors, and with what the allocator keeps."""
    return {
        "peak_memory_gib": torch.cuda.max_memory_allocated() / GIB,
        "peak_reserved_gib": torch.cuda.max_memory_reserved() / GIB,
    }
