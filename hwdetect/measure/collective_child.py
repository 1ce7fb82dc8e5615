"""All-reduce over all devices of this machine, one process each, as training does it; rank 0 prints the rate."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from hwdetect.machine.folder import decode_text
from hwdetect.machine.process import build_own_command, run_process
from hwdetect.measure.messages import print_figure, print_message
from hwdetect.measure.rounds import Visit

ROUNDS = 8
SECONDS = 60.0


def compute_bus_bytes_per_s(world: int, size: int, seconds: float) -> float:
    """Bus bandwidth as nccl-tests define it: what each link carries, whatever the number of devices.

    https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
    """
    # A ring sends every byte twice (reduce, then gather), but for the part that a rank already holds.
    return 2 * (world - 1) / world * size / seconds


def start_ranks(world: int, backend: str, kind: str, size: int) -> None:
    """Start ``world`` processes and pass on what the first one says. One that hangs costs ``SECONDS``."""
    with tempfile.TemporaryDirectory(prefix="hwdetect-") as folder:
        commands = [
            build_own_command(
                "hwdetect.measure.collective_child", str(rank), str(world), f"{folder}/store", backend, kind, str(size)
            )
            for rank in range(world)
        ]
        with ThreadPoolExecutor(world) as threads:
            ended = list(threads.map(lambda command: run_process(command, SECONDS), commands))
        sys.stdout.write(decode_text(ended[0].raw))
        failed = sum(process.code != 0 for process in ended)
        if failed:
            print_message(doubt=f"all-reduce: {failed} of {world} processes did not end well")


def run_rank(rank: int, world: int, store: str, backend: str, kind: str, size: int) -> None:
    """One rank: the middle of a few all-reduces of ``size`` bytes, and how far they are apart."""
    import torch
    import torch.distributed as dist

    device = torch.device(kind) if kind == "cpu" else torch.device(kind, rank)
    if kind != "cpu":
        torch.accelerator.set_device_index(rank)
    dist.init_process_group(
        backend, init_method=f"file://{store}", rank=rank, world_size=world, timeout=timedelta(seconds=SECONDS / 2)
    )
    block = torch.zeros(size // 4, device=device)  # fp32: four bytes each

    def wait() -> None:
        if kind != "cpu":
            torch.accelerator.synchronize(rank)

    seconds = []
    for _ in range(ROUNDS + 2):
        dist.barrier()
        started = time.perf_counter()
        dist.all_reduce(block)
        wait()
        seconds.append(time.perf_counter() - started)
    if rank == 0:
        # two are not counted: the first ones make the channels
        rates = [compute_bus_bytes_per_s(world, block.numel() * 4, each) for each in seconds[2:]]
        where = f"accelerators 0-{world - 1}"
        print_figure(
            [Visit({"bus": rates})],
            "bus",
            f"all_reduce_bus of {where}",
            what="all_reduce_bus",
            where=where,
            unit="bytes/s",
        )
    dist.destroy_process_group()


def main(arguments: Sequence[str]) -> None:
    """``RANK WORLD STORE BACKEND KIND BYTES``."""
    rank, world, store, backend, kind, size = arguments
    run_rank(int(rank), int(world), store, backend, kind, int(size))
