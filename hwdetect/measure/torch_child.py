"""Child process of ``take``: times matrix products and copies with torch and prints one JSON object per line."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations

from hwdetect.measure.collective_child import start_ranks
from hwdetect.measure.messages import print_figure, print_message
from hwdetect.measure.rounds import VISITS, Visit, take_visits

MATMUL_SECONDS = 0.15  # of each visit
DEVICE_COPY_SECONDS = 0.1
PAIR_SECONDS = 0.05
COPY_BYTES = 256 << 20
CPU_SIZES, WIDE_CPU_SIZES, DEVICE_SIZE = (1024, 2048, 4096), (4096, 8192), 8192
SLOW_SIZES = (256, 512)
WIDE_CPU_THREADS = 16  # from here on a small product is over before all threads have begun
ROUND_SECONDS = 0.1  # of each product
PRODUCT_SECONDS = 0.5  # the longest single product of a CPU: a larger one is left out
SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64", "int8": "int8"}
TF32_FROM = (8, 0)  # elsewhere the switch is there too, and changes nothing
BACKENDS = {"cuda": "nccl", "xpu": "xccl"}  # of collectives; ROCm builds call their devices cuda and RCCL nccl


def time_best_run(work: Callable[[], object], wait: Callable[[], object], seconds: float) -> float:
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


def time_matmul(torch, device: str, where: str, dtype: str, size: int, wait: Callable[[], object]) -> float | None:
    """Rate of a square product in one dtype; a dtype that the device refuses is left out."""
    kind = getattr(torch, dtype)
    try:
        if dtype == "int8":
            a, b = (torch.randint(-8, 8, (size, size), device=device, dtype=kind) for _ in range(2))
            seconds = time_best_run(lambda: torch._int_mm(a, b), wait, MATMUL_SECONDS)
        else:
            a, b = (torch.randn(size, size, device=device, dtype=torch.float32).to(kind) for _ in range(2))
            seconds = time_best_run(lambda: a @ b, wait, MATMUL_SECONDS)
    except (RuntimeError, TypeError) as error:
        print_message(doubt=f"{where}: no {dtype} matmul ({str(error).splitlines()[0][:80]})")
        return None
    return compute_product_rate(size, seconds)


def compute_product_rate(size: int, seconds: float) -> float:
    """Operations per second: a product and a sum for each of size³ pairs."""
    return 2 * size**3 / seconds


def measure_cpu(torch, threads: int, seconds: float) -> None:
    """Square products of several sizes, the largest first: a rate that only a small one reaches, in the caches, is none of a
    training's (``select_measured_rates`` of the catalogue decides)."""
    torch.set_num_threads(threads)
    sizes = WIDE_CPU_SIZES if threads >= WIDE_CPU_THREADS else CPU_SIZES
    products = prepare_products(torch, sizes)

    def time_products() -> dict[str, float]:
        return {
            name: compute_product_rate(size, time_best_run(work, lambda: None, ROUND_SECONDS))
            for name, size, _, work in products
        }

    visits = take_visits(time_products, seconds)
    for name, size, dtype, _ in reversed(products):
        print_figure(
            visits,
            name,
            f"matmul {dtype} of {size} rows of the CPU",
            what="matmul",
            where="cpu",
            unit="flop/s",
            dtype=dtype,
            size=size,
        )


def prepare_products(torch, sizes: Sequence[int]) -> list[tuple[str, int, str, Callable[[], object]]]:
    """Name, rows, dtype and the product itself, in both dtypes, of the sizes that take no longer than ``PRODUCT_SECONDS``. Where
    none does, as in bf16 without instructions for it, the largest of ``SLOW_SIZES`` that does, or the smallest of all."""
    products = []
    for dtype in ("float32", "bfloat16"):
        short: list[tuple[str, int, str, Callable[[], object]]] = []
        for size in (*SLOW_SIZES, *sizes):
            a, b = (torch.randn(size, size).to(getattr(torch, dtype)) for _ in range(2))
            work = partial(torch.matmul, a, b)
            started = time.perf_counter()
            work()
            if short and time.perf_counter() - started > PRODUCT_SECONDS:
                break  # a larger one takes longer
            short.append((f"{dtype} {size}", size, SHORT[dtype], work))
        products += [product for product in short if product[1] in sizes] or short[-1:]
    return products


def measure_devices(torch, kind: str, count: int) -> None:
    """Products and copies of every device, each visited ``VISITS`` times: the others' turns lie between."""
    visits: list[list[Visit]] = [[] for _ in range(count)]
    refused: list[set[str]] = [set() for _ in range(count)]
    for turn in range(VISITS):
        for index in range(count):
            print_message(progress=f"accelerator {index}: matmul and copies, {turn + 1} of {VISITS}")
            visits[index].append(visit_device(torch, kind, index, refused[index]))
    for index in range(count):
        where = f"accelerator {index}"
        for name in visits[index][0].rates:
            what, _, dtype = name.partition(" ")
            fields = {"unit": "flop/s", "dtype": dtype} if dtype else {"unit": "bytes/s"}
            print_figure(visits[index], name, f"{name} of {where}", what=what, where=where, **fields)


def visit_device(torch, kind: str, index: int, refused: set[str]) -> Visit:
    """The rates of one device by name; a dtype that it refuses goes to ``refused``, and is not tried again."""
    device, where = f"{kind}:{index}", f"accelerator {index}"
    torch.accelerator.set_device_index(index)
    rates: dict[str, float] = {}

    def wait() -> None:
        torch.accelerator.synchronize(index)

    torch.backends.cuda.matmul.allow_tf32 = False
    for dtype in ("float32", "float16", "bfloat16", "int8"):
        if dtype in refused:
            continue
        rate = time_matmul(torch, device, where, dtype, DEVICE_SIZE, wait)
        if rate is None:
            refused.add(dtype)
        else:
            rates[f"matmul {SHORT[dtype]}"] = rate
    if kind == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(index) >= TF32_FROM:
        torch.backends.cuda.matmul.allow_tf32 = True
        a, b = (torch.randn(DEVICE_SIZE, DEVICE_SIZE, device=device) for _ in range(2))
        seconds = time_best_run(lambda: a @ b, wait, MATMUL_SECONDS)
        rates["matmul tf32"] = compute_product_rate(DEVICE_SIZE, seconds)
    rates |= time_copies(torch, device, wait)
    return Visit(rates={name: [rate] for name, rate in rates.items()})


def time_copies(torch, device: str, wait: Callable[[], object], size: int = COPY_BYTES) -> dict[str, float]:
    """Within the device (bytes read and written), and to and from the host, from pinned memory and from other."""
    source = torch.empty(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = time_best_run(lambda: target.copy_(source), wait, DEVICE_COPY_SECONDS)
    rates = {"device_memory_bandwidth": 2 * size / seconds}  # a copy reads and writes each byte
    for name, pinned in (("pinned", True), ("pageable", False)):
        host = torch.zeros(size, dtype=torch.uint8)  # zeros: its pages exist before the clock runs
        host = host.pin_memory() if pinned else host
        to_device = time_best_run(lambda host=host: target.copy_(host, non_blocking=True), wait, DEVICE_COPY_SECONDS)
        to_host = time_best_run(lambda host=host: host.copy_(target, non_blocking=True), wait, DEVICE_COPY_SECONDS)
        rates[f"host_to_device_{name}"], rates[f"device_to_host_{name}"] = size / to_device, size / to_host
    return rates


def measure_peer_copies(torch, kind: str, count: int, size: int = COPY_BYTES) -> None:
    """Copies between every two devices, in one direction."""
    blocks = [torch.zeros(size // 4, device=f"{kind}:{index}") for index in range(count)]
    pairs = list(combinations(range(count), 2))
    visits = []
    print_message(progress=f"copies between {count} accelerators")
    for _ in range(VISITS):
        visit = Visit()
        for a, b in pairs:

            def wait(pair: tuple[int, int] = (a, b)) -> None:
                for index in pair:
                    torch.accelerator.synchronize(index)

            seconds = time_best_run(lambda a=a, b=b: blocks[b].copy_(blocks[a]), wait, PAIR_SECONDS)
            visit.add({f"{a}-{b}": size / seconds})
        visits.append(visit)
    for a, b in pairs:
        where = f"accelerators {a}-{b}"
        print_figure(visits, f"{a}-{b}", f"peer_copy of {where}", what="peer_copy", where=where, unit="bytes/s")


def main(arguments: Sequence[str]) -> None:
    """``THREADS SECONDS``: everything that can be timed here; the seconds are those of a visit to the CPU."""
    import torch

    measure_cpu(torch, int(arguments[0]), float(arguments[1]))
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return
    count = torch.accelerator.device_count()
    measure_devices(torch, accelerator.type, count)
    if count > 1:
        measure_peer_copies(torch, accelerator.type, count)
        if accelerator.type in BACKENDS:
            torch.accelerator.empty_cache()
            print_message(progress=f"all-reduce over {count} accelerators")
            start_ranks(count, BACKENDS[accelerator.type], accelerator.type, COPY_BYTES)
