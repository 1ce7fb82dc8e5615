"""On what it was measured."""

import os
import platform
from pathlib import Path


def describe_machine(gpus: list[str]) -> dict:
    """The processor's name, cores that this process may use, GPUs, the load that was there already."""
    return {
        "cpu": name_cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "gpus": gpus,
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "system": platform.platform(terse=True),
    }


def name_cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
