"""The plan was made for no machine: any will do. And what did the run need of it?"""

import resource
import sys

GIB = 1 << 30


def check_machine(planned: None) -> None:
    """Nothing to compare."""


def peak_memory() -> dict[str, float]:
    """Peak resident memory of this process in GiB (macOS counts it in bytes, Linux in KiB)."""
    unit = 1 if sys.platform == "darwin" else 1024
    return {"peak_memory_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / GIB}
