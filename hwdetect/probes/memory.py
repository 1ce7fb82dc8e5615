"""Host memory: total, available, swap, huge pages, /dev/shm, and NUMA nodes with memory (GPU memory counted apart)."""

from __future__ import annotations

import re

from hwdetect.machine.protocol import Machine
from hwdetect.probes.cgroup import Limits
from hwdetect.probes.cpu.topology import NODES, list_nodes
from hwdetect.probes.notes import Notes
from hwdetect.probes.parsing import parse_integer, parse_pairs
from hwdetect.probes.process_limits import read_lockable_bytes
from hwdetect.types import Memory

NVIDIA_GPUS = "proc/driver/nvidia/gpus"


def read_memory(machine: Machine, limits: Limits, notes: Notes) -> Memory:
    """What /proc and /sys say. GPU memory that the kernel shows as nodes is taken out of the total."""
    gpu_nodes = _list_gpu_nodes(machine)
    sizes = {node: _read_node_bytes(machine, node) for node in list_nodes(machine)}
    gpu_bytes = sum(sizes.get(node) or 0 for node in gpu_nodes)
    host_nodes = [size for node, size in sizes.items() if size and node not in gpu_nodes]
    text = machine.read("proc/meminfo")
    info = parse_pairs(text)
    total = _parse_kibibytes(info.get("MemTotal"))
    # MemTotal counts every node, those of GPUs too.
    total_bytes = total - gpu_bytes if total is not None else (sum(host_nodes) or None)
    if total_bytes is None and machine.live:
        total_bytes = machine.count_resources()[1]
    if total_bytes is None:
        notes.add("memory.total_bytes", "procfs", "no proc/meminfo, and no node folder with memory")
    for field, key in (("memory.total_bytes", "MemTotal"), ("memory.available_bytes", "MemAvailable")):
        if text is not None and _parse_kibibytes(info.get(key)) is None:
            notes.add(field, "procfs", f"proc/meminfo has no {key} in kB ({len(text)} characters)")
    swap_total, swap_free = _parse_kibibytes(info.get("SwapTotal")), _parse_kibibytes(info.get("SwapFree"))
    return Memory(
        total_bytes=total_bytes,
        available_bytes=_parse_kibibytes(info.get("MemAvailable")),
        limit_bytes=limits.memory_bytes,
        shm_bytes=_read_shm_bytes(machine),
        swap_total_bytes=swap_total,
        swap_used_bytes=None if swap_total is None or swap_free is None else swap_total - swap_free,
        huge_pages_bytes=_sum_huge_pages(info),
        numa_nodes=len(host_nodes) or None,
        gpu_numa_nodes=len(gpu_nodes),
        lockable_bytes=read_lockable_bytes(machine, notes),
    )


def _parse_kibibytes(text: str | None) -> int | None:
    match = re.fullmatch(r"(\d{1,18})\s*kB", text or "")
    return int(match.group(1)) * 1024 if match else None


def _read_node_bytes(machine: Machine, node: int) -> int | None:
    match = re.search(r"MemTotal:\s*(\d{1,18})\s*kB", machine.read(f"{NODES}/node{node}/meminfo") or "")
    return int(match.group(1)) * 1024 if match else None


def _list_gpu_nodes(machine: Machine) -> frozenset[int]:
    """Nodes that are GPU memory (POWER9 with V100, GH200, GB200), as NVIDIA's driver names them."""
    nodes = set()
    for gpu in machine.list_folder(NVIDIA_GPUS):
        node = parse_integer(parse_pairs(machine.read(f"{NVIDIA_GPUS}/{gpu}/numa_status")).get("Node"))
        if node is not None and node >= 0:
            nodes.add(node)
    return frozenset(nodes)


def _sum_huge_pages(info: dict[str, str]) -> int | None:
    count, size = parse_integer(info.get("HugePages_Total")), _parse_kibibytes(info.get("Hugepagesize"))
    return None if count is None or size is None else count * size


def _read_shm_bytes(machine: Machine) -> int | None:
    space = machine.get_space("/dev/shm")
    return space.total_bytes if space else None
