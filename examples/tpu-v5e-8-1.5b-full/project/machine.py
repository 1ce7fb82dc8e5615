"""Is this the machine that the plan was made for? And what did the run need of it?"""

import resource
import sys

import torch_xla.runtime as xr

GIB = 1 << 30


def check_machine(planned: dict) -> None:
    """Stop where the plan cannot work; say what else differs. After ``use_spmd``: this starts the runtime."""
    runtime, count = xr.device_type(), xr.global_runtime_device_count()
    if runtime == "CPU":
        if "gpus" in planned:
            print(f"Planned for {planned['name']}, run on the CPU runtime: a trial of the code, not of its speed.")
        return
    if runtime != "TPU" or "gpus" not in planned:
        needed = "a TPU" if "gpus" in planned else "the CPU runtime"
        sys.exit(
            f"This plan needs {needed}, and PJRT_DEVICE gives {runtime}: PJRT_DEVICE=TPU on a TPU VM, CPU for a trial."
        )
    if count < planned["gpus"]:
        sys.exit(f"This plan needs {planned['gpus']} TPU chips on this host, and the runtime has {count} devices.")


def peak_memory() -> dict[str, float]:
    """In GiB: of this process. What a TPU holds, its runtime says in a log alone."""
    return {"peak_memory_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB}
