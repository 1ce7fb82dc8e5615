"""Child process of ``measure``: times matrix products and copies with torch and prints one JSON object a line."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

MATMUL_SECONDS = 0.4
COPY_BYTES = 256 << 20
CPU_SIZE, DEVICE_SIZE = 1024, 8192


def say(**values: object) -> None:
    print(json.dumps(values), flush=True)


def best_seconds(work: Callable[[], object], wait: Callable[[], object], seconds: float) -> float:
    """The fastest of as many runs as fit, after one that is not counted."""
    work()
    wait()
    best, ends = float("inf"), time.perf_counter() + seconds
    while True:
        started = time.perf_counter()
        work()
        wait()
        best = min(best, time.perf_counter() - started)
        if time.perf_counter() > ends:
            return best


def matmul(torch, device: str, where: str, dtype: str, size: int, wait: Callable[[], object]) -> None:
    """Rate of a square product in one dtype; a dtype that the device refuses is left out."""
    kind = getattr(torch, dtype)
    try:
        a, b = (torch.randn(size, size, device=device, dtype=torch.float32).to(kind) for _ in range(2))
        seconds = best_seconds(lambda: a @ b, wait, MATMUL_SECONDS)
    except RuntimeError as error:
        say(progress=f"{where}: no {dtype} matmul ({str(error).splitlines()[0][:80]})")
        return
    short = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}[dtype]
    say(what="matmul", where=where, value=2 * size**3 / seconds, unit="flop/s", dtype=short)


def on_cpu(torch, threads: int) -> None:
    torch.set_num_threads(threads)
    for dtype in ("float32", "bfloat16"):
        matmul(torch, "cpu", "cpu", dtype, CPU_SIZE, lambda: None)


def on_device(torch, index: int) -> None:
    device, where = f"cuda:{index}", f"accelerator {index}"
    torch.cuda.set_device(index)

    def wait() -> None:
        torch.cuda.synchronize(index)

    say(progress=f"{where}: matmul")
    torch.backends.cuda.matmul.allow_tf32 = False
    for dtype in ("float32", "float16", "bfloat16"):
        matmul(torch, device, where, dtype, DEVICE_SIZE, wait)
    torch.backends.cuda.matmul.allow_tf32 = True
    a, b = (torch.randn(DEVICE_SIZE, DEVICE_SIZE, device=device) for _ in range(2))
    seconds = best_seconds(lambda: a @ b, wait, MATMUL_SECONDS)
    say(what="matmul", where=where, value=2 * DEVICE_SIZE**3 / seconds, unit="flop/s", dtype="tf32")
    say(progress=f"{where}: copies")
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = best_seconds(lambda: target.copy_(source), wait, 0.2)
    say(what="device_memory_bandwidth", where=where, value=2 * COPY_BYTES / seconds, unit="bytes/s")
    for name, pinned in (("pinned", True), ("pageable", False)):
        host = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=pinned)
        to_device = best_seconds(lambda host=host: target.copy_(host, non_blocking=True), wait, 0.2)
        to_host = best_seconds(lambda host=host: host.copy_(target, non_blocking=True), wait, 0.2)
        say(what=f"host_to_device_{name}", where=where, value=COPY_BYTES / to_device, unit="bytes/s")
        say(what=f"device_to_host_{name}", where=where, value=COPY_BYTES / to_host, unit="bytes/s")


def between(torch, count: int) -> None:
    """Copies from the first device to every other, and an all-reduce over all of them."""

    def wait() -> None:
        for index in range(count):
            torch.cuda.synchronize(index)

    blocks = [torch.zeros(COPY_BYTES // 4, device=f"cuda:{index}") for index in range(count)]
    for other in range(1, count):
        seconds = best_seconds(lambda other=other: blocks[other].copy_(blocks[0]), wait, 0.2)
        say(what="peer_copy", where=f"accelerators 0-{other}", value=COPY_BYTES / seconds, unit="bytes/s")
    if torch.cuda.nccl.is_available(blocks):
        seconds = best_seconds(lambda: torch.cuda.nccl.all_reduce(blocks), wait, 0.4)
        # Bus bandwidth as nccl-tests define it: what each link carries, whatever the number of devices.
        bus = 2 * (count - 1) / count * COPY_BYTES / seconds
        say(what="all_reduce_bus", where=f"accelerators 0-{count - 1}", value=bus, unit="bytes/s")


def main(threads: int) -> None:
    import torch

    on_cpu(torch, threads)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for index in range(count):
        on_device(torch, index)
    if count > 1:
        between(torch, count)


if __name__ == "__main__":
    main(int(sys.argv[1]))
