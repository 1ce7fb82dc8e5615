"""Before a long run: are all processes there, equal, and as fast to each other as was planned?

Under a minute. It was run on CPUs, over gloo: what joins accelerators was not there.
"""

import quiet_imports  # noqa: F401  # isort: skip

import argparse
import json
import os
import platform
import shutil
import signal
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, pairwise
from pathlib import Path

import psutil
import torch
import torch.distributed as dist

from config_file import read_config
from launcher_summary import tell_launcher, tell_of_end

HERE = Path(__file__).parent
CONFIG = read_config()
DEVICE = CONFIG["machine"]["device"]
PLANNED = CONFIG["processes"]["preflight"]
ELEMENTS = (1 << 20) if DEVICE == "cpu" else (1 << 25)  # float32: 4 MiB, 128 MiB
PROBE_ELEMENTS = 1 << 14  # 64 KiB, which tell how many of those a link takes in time
REPEAT_SECONDS = 0.5  # over a link of 1 Mbit/s one of 4 MiB would take half a minute
REPEATS = 5
SHOWN_LINKS = 32
PRODUCT_SECONDS = 1.0  # of products: what else runs on a CPU, or a clock that has not risen yet, is not in all of them
SLOW_LINK = 0.25 if DEVICE == "cpu" else 0.5  # of what is predicted, or of the usual one of its kind
SLOW_RANK = 0.5 if DEVICE == "cpu" else 0.8  # of the usual: processes on a CPU share it with whatever else runs
SHM_BYTES = 512 << 20  # Docker's own is 64 MiB: too little for collectives and data workers
CLOCK_SECONDS = 2.0  # between nodes: files would seem newer or older than they are
PACKAGES = ("torch", "transformers", "accelerate", "deepspeed", "numpy")


def synchronize() -> None:
    if DEVICE != "cpu":
        getattr(torch, DEVICE).synchronize()


def measure_seconds(function: Callable[[], object]) -> float:
    """Of the fastest repeat: what else runs makes single ones slower."""
    return min(list_seconds(function))


def list_seconds(function: Callable[[], object], least: float = 0.0) -> list[float]:
    """Of each repeat, for ``least`` seconds at least. The first two are not counted."""
    taken: list[float] = []
    while len(taken) < REPEATS + 2 or sum(taken) < least:
        synchronize()
        begun = time.perf_counter()
        function()
        synchronize()
        taken.append(time.perf_counter() - begun)
    return taken[2:]


def describe_rank() -> dict:
    """What this process sees of its node; equal ``versions`` are asked of all."""
    versions = {"python": platform.python_version(), "device": DEVICE}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    if DEVICE != "cpu":
        versions["device"] = getattr(torch, DEVICE).get_device_name()
    if DEVICE == "cuda":
        versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # RCCL on ROCm
    runs = HERE / CONFIG["output_dir"]
    disk = shutil.disk_usage(runs if runs.exists() else HERE)
    shm = shutil.disk_usage("/dev/shm").free if Path("/dev/shm").exists() else None
    rank = {"host": socket.gethostname(), "versions": versions, "disk_free_bytes": disk.free, "shm_free_bytes": shm}
    return rank | (describe_port() if DEVICE == "cpu" else {})


def describe_port() -> dict:
    """By which other nodes reach this one over gloo: its interface, what Linux says of its speed (a virtual machine may
    not know it), and what the CPU passes on over TCP, which a fast port waits for."""
    address, named = os.environ.get("PET_LOCAL_ADDR"), os.environ.get("GLOO_SOCKET_IFNAME")  # of env.sh
    port = next(
        (
            name
            for name, own in psutil.net_if_addrs().items()
            if name == named or address in [one.address for one in own]
        ),
        None,
    )
    known = psutil.net_if_stats().get(port) if port else None
    line = known.speed * 1e6 / 8 if known else 0.0
    return {"port": port, "port_bytes_per_s": line, "tcp_bytes_per_s": measure_tcp() if port else 0.0}


def measure_tcp() -> float:
    """Bytes per second from one thread of this process to another."""
    part = bytes(4 * ELEMENTS)
    with socket.create_server(("localhost", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()
        with receiver:

            def pass_on() -> None:
                thread = threading.Thread(target=sender.sendall, args=(part,))
                thread.start()
                missing = len(part)
                while missing:
                    missing -= len(receiver.recv(min(missing, 1 << 20)))
                thread.join()

            return len(part) / measure_seconds(pass_on)


def measure_product() -> float:
    """Products of this device alone, per second: a board that is hot or shares its clock is slower than the others.

    Of a CPU on average, which a quota slows, and not in each product; a GPU's clock has to rise first.
    """
    size = 512 if DEVICE == "cpu" else 4096
    one = torch.randn(size, size, device=DEVICE, dtype=torch.float32 if DEVICE == "cpu" else torch.bfloat16)
    seconds = list_seconds(lambda: one @ one, PRODUCT_SECONDS)
    return 1 / (statistics.mean(seconds) if DEVICE == "cpu" else min(seconds))


def choose_elements(pass_on: Callable[[torch.Tensor], object]) -> int:
    """As many as a repeat of ``pass_on`` may take: of a link that is far too slow fewer tell as much."""
    probe = torch.ones(PROBE_ELEMENTS, device=DEVICE)
    pass_on(probe)  # connects
    synchronize()
    begun = time.perf_counter()
    pass_on(probe)
    synchronize()
    share = REPEAT_SECONDS / (time.perf_counter() - begun)
    return max(PROBE_ELEMENTS, min(ELEMENTS, int(PROBE_ELEMENTS * share)))


def measure_all_reduce() -> float:
    """Bytes per second that each process passes on, in both halves of a ring."""
    elements, count = torch.tensor(choose_elements(dist.all_reduce), device=DEVICE), dist.get_world_size()
    dist.all_reduce(elements, dist.ReduceOp.MIN)
    tensor = torch.ones(int(elements), device=DEVICE)
    seconds = measure_seconds(lambda: dist.all_reduce(tensor))
    return 2 * (count - 1) / count * tensor.nbytes / seconds


def list_rounds(count: int, per_node: int) -> list[list[tuple[int, int]]]:
    """Pairs, in rounds in which no process is in two: neighbours in a node, then each with its like of the next node.

    All of a node send to the next at one time, each by the port near it, as in a training: one pair alone would have
    all ports to itself, or try one of them.
    """
    nodes = [list_ring(range(first, first + per_node)) for first in range(0, count, per_node)]
    likes = [list_ring(range(place, count, per_node)) for place in range(per_node)]
    rounds = [list(chain(*together)) for rings in (nodes, likes) for together in zip(*rings, strict=True)]
    return [pairs for pairs in rounds if pairs]


def list_ring(ranks: range) -> tuple[list[tuple[int, int]], ...]:
    """Neighbours on a ring, in three rounds."""
    pairs = list(pairwise(ranks))
    return pairs[::2], pairs[1::2], [(ranks[-1], ranks[0])] if len(ranks) > 2 else []


def measure_links() -> dict[str, float]:
    """Bytes per second between two processes, there and back, by "rank-rank"."""
    rank, rates = dist.get_rank(), {}
    for pairs in list_rounds(dist.get_world_size(), int(os.environ["LOCAL_WORLD_SIZE"])):
        dist.barrier()
        mine = next((pair for pair in pairs if rank in pair), None)
        if mine is None:
            continue

        def pass_on(tensor: torch.Tensor, pair: tuple[int, int] = mine) -> None:  # there and back
            for sender, receiver in (pair, pair[::-1]):
                dist.send(tensor, receiver) if rank == sender else dist.recv(tensor, sender)

        elements = torch.tensor(choose_elements(pass_on), device=DEVICE)
        dist.send(elements, mine[1]) if rank == mine[0] else dist.recv(elements, mine[0])
        tensor = torch.ones(int(elements), device=DEVICE)
        seconds = measure_seconds(partial(pass_on, tensor))
        if rank == mine[0]:
            rates[f"{mine[0]}-{mine[1]}"] = 2 * tensor.nbytes / seconds
    return rates


def rehearse_signal() -> float:
    """Seconds from SIGTERM at the last process until all know of it: they must save after the same step."""
    came = []
    before = signal.signal(signal.SIGTERM, lambda *_: came.append(True))
    dist.barrier()
    begun = time.perf_counter()
    if dist.get_rank() == dist.get_world_size() - 1:
        os.kill(os.getpid(), signal.SIGTERM)
    came_anywhere = torch.tensor(float(bool(came)), device=DEVICE)
    dist.all_reduce(came_anywhere, dist.ReduceOp.MAX)
    signal.signal(signal.SIGTERM, before)
    return time.perf_counter() - begun if came_anywhere.item() else float("inf")


def take_device(number: int) -> None:
    count = getattr(torch, DEVICE).device_count()
    if number >= count:
        sys.exit(
            f"{socket.gethostname()}: PyTorch sees {count} devices, and process {number} there has none of its own"
        )
    getattr(torch, DEVICE).set_device(number)


def gather(value: object) -> list:
    gathered: list = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, value)
    return gathered


def find_problems(report: dict) -> list[str]:
    """Each names what is wrong, where, and beside what."""
    ranks, links, expected = report["ranks"], report["links"], PLANNED
    problems = []
    for name, first in ranks[0]["versions"].items():
        for n, rank in enumerate(ranks):
            if rank["versions"][name] != first:
                problems.append(f"{name}: {rank['versions'][name]} on rank {n} ({rank['host']}), {first} on rank 0")
    for host in dict.fromkeys(r["host"] for r in ranks):
        there = [r for r in ranks if r["host"] == host]
        free = min(r["disk_free_bytes"] for r in there) / 2**30
        shm = min((r["shm_free_bytes"] for r in there if r["shm_free_bytes"] is not None), default=SHM_BYTES)
        if free < expected["disk_gib"]:
            problems.append(f"{host}: {free:.1f} GiB free on the disk, checkpoints take {expected['disk_gib']}")
        if shm < SHM_BYTES:
            problems.append(f"{host}: {shm >> 20} MiB free in /dev/shm (docker run --shm-size)")
    skew = max(r["clock"] for r in ranks) - min(r["clock"] for r in ranks)
    if skew > CLOCK_SECONDS:
        problems.append(f"clocks differ by {skew:.1f} s: {', '.join(sorted({r['host'] for r in ranks}))}")
    usual = find_usual([r["products_per_s"] for r in ranks])
    for n, rank in enumerate(ranks):
        if rank["products_per_s"] < SLOW_RANK * usual:
            share = rank["products_per_s"] / usual
            problems.append(f"rank {n} ({rank['host']}) computes at {share:.0%} of what others do")
    problems += list_slow_links(ranks, links)
    if report["signal_seconds"] == float("inf"):
        problems.append("SIGTERM at the last process did not reach the others")
    return problems


def list_slow_links(ranks: list[dict], links: dict[str, float]) -> list[str]:
    """Beside what was predicted, or the others of their kind; a rank whose every link is slow is named itself."""
    kinds: dict[str, list[float]] = {}
    for pair, rate in links.items():
        kinds.setdefault(find_kind(pair, ranks), []).append(rate)
    slow = {}
    for pair, rate in links.items():
        predicted, reason = predict_rate(pair, ranks)
        least = predicted or find_usual(kinds[find_kind(pair, ranks)])
        if rate < SLOW_LINK * least:
            slow[pair] = f"{rate / 1e9:.3g} GB/s, expected {least / 1e9:.3g}{reason}"
    lines = [f"link {pair} ({name_hosts(pair, ranks)}): {rate}" for pair, rate in slow.items()]
    for rank in range(len(ranks) if len(ranks) > 2 else 0):
        own = [pair for pair in links if str(rank) in pair.split("-")]
        if own and all(pair in slow for pair in own) and len(slow) < len(links):
            lines.append(
                f"rank {rank} ({ranks[rank]['host']}): each of its links is slow: look at that device and its port"
            )
    return lines


def find_kind(pair: str, ranks: list[dict]) -> str:
    """Within a node, or between two."""
    return "nodes" if len({ranks[int(rank)]["host"] for rank in pair.split("-")}) == 2 else "node"


def predict_rate(pair: str, ranks: list[dict]) -> tuple[float | None, str]:
    """Bytes per second as planned, or between CPU hosts by what the slower one's port has for it, and the reason."""
    kind, ends = find_kind(pair, ranks), [ranks[int(rank)] for rank in pair.split("-")]
    if f"{kind}_gb_per_s" in PLANNED:
        return PLANNED[f"{kind}_gb_per_s"] * 1e9, ""
    if kind == "node" or not all(end.get("port_bytes_per_s") for end in ends):
        return None, ""
    # all of a host send at one time
    parts = {end["host"]: sum(rank["host"] == end["host"] for rank in ranks) for end in ends}
    slower = min(ends, key=lambda end: end["port_bytes_per_s"] / parts[end["host"]])
    line = slower["port_bytes_per_s"] / parts[slower["host"]]
    reason = f" ({slower['port']} of {slower['host']}: {slower['port_bytes_per_s'] * 8 / 1e6:.0f} Mbit/s by Linux)"
    return min(line, *(end["tcp_bytes_per_s"] for end in ends)), reason


def name_hosts(pair: str, ranks: list[dict]) -> str:
    return " to ".join(dict.fromkeys(ranks[int(rank)]["host"] for rank in pair.split("-")))


def find_usual(rates: list[float]) -> float:
    """One that a slow rank leaves as it is: of three neighbours on a ring two have a link to it."""
    return sorted(rates)[-1 - len(rates) // 4] if rates else 0.0


def print_report(report: dict) -> None:
    ranks = report["ranks"]
    print(f"{len(ranks)} processes on {len({r['host'] for r in ranks})} nodes, {report['seconds']:.0f} s")
    rate, predicted = report["all_reduce_bytes_per_s"] / 1e9, PLANNED.get("all_reduce_gb_per_s")
    print(f"all-reduce {rate:.2f} GB/s" + (f", predicted {predicted:.2f}" if predicted else ""))
    slowest = sorted(report["links"].items(), key=lambda link: link[1])[:SHOWN_LINKS]
    print(f"{len(report['links'])} links, the slowest:")
    compared = 0
    for pair, measured in slowest:
        predicted, _ = predict_rate(pair, ranks)
        compared += predicted is None
        beside = f", predicted {predicted / 1e9:.3g}" if predicted else ""
        print(f"link {pair} ({name_hosts(pair, ranks)}) {measured / 1e9:.3g} GB/s{beside}")
    if compared:
        print("Where no rate is predicted a link is compared with the others of its node, or between nodes.")
    print(f"SIGTERM known to all after {report['signal_seconds'] * 1000:.0f} ms")
    print("\n".join(f"PROBLEM {problem}" for problem in report["problems"]) or "nothing is wrong")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="the report as JSON, and nothing else")
    options = parser.parse_args()
    begun = time.perf_counter()
    if DEVICE != "cpu":
        take_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(timeout=timedelta(seconds=60))
    planned = CONFIG["processes"]["expected"]["world_size"]
    if dist.get_world_size() != planned:
        sys.exit(f"{dist.get_world_size()} processes, and the plan is for {planned}")
    rank = describe_rank() | {"products_per_s": measure_product()}
    dist.barrier()
    ranks = gather(rank | {"clock": time.time()})
    all_reduce, links = measure_all_reduce(), {}
    for rates in gather(measure_links()):
        links |= rates
    report = {"ranks": ranks, "all_reduce_bytes_per_s": all_reduce, "links": links, "planned": PLANNED}
    report["signal_seconds"] = max(gather(rehearse_signal()))
    report |= {"seconds": time.perf_counter() - begun}
    report["problems"] = find_problems(report)
    if dist.get_rank() == 0:
        print(json.dumps(report), flush=True) if options.json else print_report(report)
        if report["problems"]:
            tell_launcher("\n".join(report["problems"]))
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(1 if report["problems"] else 0)


if __name__ == "__main__":
    with tell_of_end():
        main()
