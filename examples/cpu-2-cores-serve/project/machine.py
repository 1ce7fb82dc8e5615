"""Is this the machine that the plan was made for? And what did the run need of it?"""

import ctypes
import os
import resource
import sys
from pathlib import Path

GIB = 1 << 30
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # malloc.h
MADV_HUGEPAGE = 14  # sys/mman.h


def check_machine(planned: dict) -> None:
    """Stop where the plan cannot work; say what else differs."""
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # of this machine: each needs as much
    needed, cpus = round(processes * planned["needs_gib"], 1), processes * planned["cpus"]
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    usable = min([total, *list_memory_limits()])
    if usable / GIB < needed:
        limited = f"of this machine's {total / GIB:.1f} its control group allows"
        where = "this machine has" if usable == total else limited
        sys.exit(f"This plan was made for {needed} GiB of memory, and {where} {usable / GIB:.1f}.")
    if os.cpu_count() < cpus and os.environ.get("LOCAL_RANK", "0") == "0":
        print(f"Planned for {cpus} CPUs, this machine has {os.cpu_count()}: slower than PLAN.md says.")


def keep_freed_memory(planned: dict) -> None:
    """What a step frees serves the next one. glibc would give each large tensor back to the kernel, which clears every
    page of the next: with bf16 products a seventh of a step, and a tenth are pages of 4 KiB in place of 2 MiB."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc
        libc.mallopt(M_MMAP_MAX, 0)  # tensors lie in the heap
        libc.mallopt(M_TRIM_THRESHOLD, -1)  # which does not shrink
        widen_heap(libc, int(planned["needs_gib"] * GIB))


def widen_heap(libc: ctypes.CDLL, size: int) -> None:
    """The heap grows by ``size`` bytes of large pages, none of which is there before it is written."""
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.madvise.argtypes, libc.free.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int], [ctypes.c_void_p]
    start = libc.malloc(size)
    if start:  # else the kernel promises no more memory than there is
        page = os.sysconf("SC_PAGE_SIZE")
        first = -(-start // page) * page
        libc.madvise(first, start + size - first, MADV_HUGEPAGE)  # refused by kernels that have no such pages
        libc.free(start)


def list_memory_limits(root: Path = Path("/")) -> list[int]:
    """Bytes that the control groups of this process allow, its own and all above: beyond the smallest it is killed."""
    groups = root / "proc/self/cgroup"
    limits = []
    for line in groups.read_text(encoding="utf-8").splitlines() if groups.exists() else []:
        _, controllers, group = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mount, name = ("memory", "memory.limit_in_bytes") if controllers else ("", "memory.max")  # v1, v2
        top = root / "sys/fs/cgroup" / mount
        # A container sees its own group at the top, whatever the group's name: what is not there is passed over.
        inside = [part for part in group.split("/") if part and part != ".."]
        for depth in range(len(inside) + 1):
            file = top.joinpath(*inside[:depth], name)
            if file.exists() and (text := file.read_text(encoding="utf-8").strip()).isdecimal():  # or "max"
                limits.append(int(text))
    return limits


def peak_memory() -> dict[str, float]:
    """Peak resident memory of this process in GiB (Linux counts it in KiB)."""
    return {"peak_memory_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB}
