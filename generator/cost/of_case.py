"""The cost model of a case."""

from __future__ import annotations

from generator.case.case import Case
from generator.cost import CostModel


def build_cost_model(case: Case) -> CostModel:
    return CostModel(
        case.device,
        case.model,
        device_memory_bytes=case.device_memory_bytes,
        host_memory_bytes=case.hardware.memory.usable_bytes,
        cpu_budget=count_usable_cores(case),
        links=case.links,
        devices_per_node=case.devices_per_node,
        network_bytes_per_s=case.network_bytes_per_s,
        nvme_bytes_per_s=find_nvme_rate(case),
        measured=case.hardware.measured,
        accelerators=case.accelerators,
        num_labels=case.workload.labels if case.workload.task_facts.classifies else 0,
        task=case.workload.task,
        served=case.workload.serves,
    )


def find_nvme_rate(case: Case) -> float | None:
    """Bytes per second of the disk that would be offloaded to, where it was measured or stated."""
    rates = [d.read_bytes_per_s for d in case.hardware.disks if d.kind == "nvme" and d.read_bytes_per_s]
    return max(rates, default=None)


def count_usable_cores(case: Case) -> int | None:
    """Physical cores that this process may use: two threads of one core share its arithmetic units."""
    known = [n for n in (case.hardware.cpu.budget, case.hardware.cpu.cores) if n]
    return min(known, default=None)
