"""Is this the machine that the plan was made for? And what did the run need of it?"""

import sys

import torch

GIB = 1 << 30


def check_machine(planned: dict) -> None:
    """Stop where the plan cannot work; say what else differs."""
    if not torch.backends.mps.is_available():
        sys.exit("This plan needs an Apple GPU, and PyTorch sees none: a Python for arm64, on macOS 14 or later.")
    if not torch.backends.mps.is_macos_or_newer(14, 0):
        sys.exit("This plan needs macOS 14 or later: before, Metal has no bf16.")
    memory_gib = torch.mps.recommended_max_memory() / GIB
    if memory_gib < planned["needs_gib"]:
        sys.exit(
            f"This plan was made for {planned['needs_gib']} GiB, and macOS gives the GPU {memory_gib:.1f} here "
            "(sudo sysctl iogpu.wired_limit_mb=... raises it)."
        )
    if abs(memory_gib / planned["memory_gib"] - 1) > 0.15:
        print(f"Planned for {planned['memory_gib']} GiB of {planned['name']}, which has {memory_gib:.1f} here.")


def peak_memory() -> dict[str, float]:
    """GPU memory in GiB that Metal gave this process: about the most that it held, as little is
    given back."""
    return {"peak_memory_gib": torch.mps.driver_allocated_memory() / GIB}
