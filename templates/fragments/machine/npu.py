"""Is this the machine that the plan was made for? And what did the run need of it?"""

import os
import sys

import torch

GIB = 1 << 30


def check_machine(planned: dict) -> None:
    """Stop where the plan cannot work; say what else differs."""
    if not hasattr(torch, "npu"):  # torch-npu adds it as torch is imported
        sys.exit("This plan needs an Ascend NPU, and PyTorch has no torch-npu: make setup, then .venv/bin/python.")
    count = torch.npu.device_count()
    if count == 0:
        sys.exit(
            "This plan needs an Ascend NPU, and PyTorch sees none: look at npu-smi info and ASCEND_RT_VISIBLE_DEVICES."
        )
    if count < planned["gpus"]:
        sys.exit(f"This plan needs {planned['gpus']} NPUs on this machine, and PyTorch sees {count}.")
    npu = torch.npu.get_device_properties(int(os.environ.get("LOCAL_RANK", 0)))  # each process has its own
    memory_gib = npu.total_memory / GIB
    if memory_gib < planned["needs_gib"]:
        sys.exit(f"This plan was made for {planned['needs_gib']} GiB, and {npu.name} has {memory_gib:.1f}.")
    if not torch.npu.is_bf16_supported():
        print(f"{npu.name} has no bf16: where the plan uses it, it does not run here.")
    if abs(memory_gib / planned["memory_gib"] - 1) > 0.1:
        print(f"Planned for {planned['name']}, running on {npu.name}: speed and memory will differ from PLAN.md.")


def peak_memory() -> dict[str, float]:
    """Peak NPU memory in GiB: of tensors, and with what the allocator keeps."""
    return {
        "peak_memory_gib": torch.npu.max_memory_allocated() / GIB,
        "peak_reserved_gib": torch.npu.max_memory_reserved() / GIB,
    }
