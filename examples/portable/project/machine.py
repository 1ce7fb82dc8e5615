"""What the run needed of the machine."""

import resource
import sys

GIB = 1 << 30


def peak_memory() -> dict[str, float]:
    """Peak resident memory of this process in GiB (macOS counts it in bytes, Linux in KiB)."""
    unit = 1 if sys.platform == "darwin" else 1024
    return {"peak_memory_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / GIB}
