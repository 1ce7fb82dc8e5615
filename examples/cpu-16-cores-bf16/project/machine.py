"""Is this the machine that the plan was made for? And what did the run need of it?"""

import os
import resource
import sys

GIB = 1 << 30


def check_machine(planned: dict) -> None:
    """Stop where the plan cannot work; say what else differs."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    if memory_gib < planned["needs_gib"]:
        sys.exit(f"This plan was made for {planned['needs_gib']} GiB of memory, and this machine has {memory_gib:.1f}.")
    if os.cpu_count() < planned["cpus"]:
        print(f"Planned for {planned['cpus']} CPUs, this machine has {os.cpu_count()}: slower than PLAN.md says.")


def peak_memory() -> dict[str, float]:
    """Peak resident memory of this process in GiB (Linux counts it in KiB)."""
    return {"peak_memory_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB}
