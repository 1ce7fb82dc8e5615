"""What the forms of offloading share: DeepSpeed's offload blocks, and FSDP's one switch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from generator.case.case import Case
from generator.techniques.base import Technique
from generator.techniques.edits import Edits
from generator.techniques.launch import is_by_accelerate
from generator.techniques.traits import Trait
from hwdetect.types import Disk

CANNOT = "only {able} can offload this"
STATE_BYTES = 16
"""on disk, per parameter: float32 weight, gradient and two moments (DeepSpeed docs, memory.rst)"""

PINNED_AS_ASKED = ("PYTORCH_ALLOC_CONF", "pinned_max_round_threshold_mb:64,pinned_max_cached_size_mb:64")
"""PyTorch rounds page-locked memory up to a power of two and never gives it back: 35 GB of states would take 69
(torch 2.13, ATen/core/CachingHostAllocator.h)."""


class Offload(Technique):
    """Base of the forms of offloading. ``optimizer`` and ``params``: where states and weights live (none, cpu, nvme)."""

    axis = "offload"
    last_resort = 2
    optimizer: ClassVar[str] = "none"
    params: ClassVar[str] = "none"
    needs: ClassVar = {Trait.TORCH_ADAMW: "the update on the host is written for AdamW"}

    def obstacle(self, case: Case) -> str | None:
        if case.on_cpu or case.portable:
            return "there is no accelerator to offload from"
        if case.device.unified_memory:
            return f"{case.device.name} and its host share one memory: nothing would leave it"
        return self.explain_missing(case)

    def explain_missing(self, case: Case) -> str | None:
        """Why the machine has no place to offload to, or ``None``."""
        return None if case.hardware.memory.usable_bytes else "the host's memory could not be read"

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"offload_optimizer": self.optimizer, "offload_params": self.params}

    def edits(self, case: Case) -> Edits:
        environment = (*name_threads(case), PINNED_AS_ASKED)
        if is_by_accelerate(case.layout):
            return Edits(accelerate=(("fsdp_config.fsdp_offload_params", True),), environment=environment)
        settings: dict[str, object] = {
            # PyTorch's fused AdamW is vectorized on CPUs too; DeepSpeed's own has to be compiled, with nvcc
            "zero_force_ds_cpu_optimizer": False,
        }
        for what, where in (("optimizer", self.optimizer), ("param", self.params)):
            if where != "none":
                block = f"zero_optimization.offload_{what}"
                settings |= {f"{block}.device": where, f"{block}.pin_memory": True} | self.locate(block, case)
        return Edits(deepspeed=tuple(settings.items()), environment=environment)

    def locate(self, block: str, case: Case) -> dict[str, object]:
        """More of one offload block of deepspeed.json: where on the host."""
        return {}


def name_threads(case: Case) -> tuple[tuple[str, str], ...]:
    """``OMP_NUM_THREADS``: physical cores for each process of a node. The optimizer runs on them, and torchrun leaves every
    process one where nobody says more. Nothing where the cores are not known."""
    cpu = case.hardware.cpu
    cores = cpu.budget if cpu.budget is None or not cpu.cores else min(cpu.budget, cpu.cores)
    return () if cores is None else (("OMP_NUM_THREADS", str(max(1, cores // case.layout.per_node))),)


class NvmeOffload(Offload):
    """Base of what offloads to a disk."""

    optimizer = "nvme"
    compiles = True
    needs: ClassVar = {Trait.NVME_OFFLOAD: CANNOT}

    def explain_missing(self, case: Case) -> str | None:
        if why := case.explain_missing("nvcc"):
            return why
        disks = _list_nvme(case)
        if not disks:
            return "no NVMe disk was found under the working, cache or temporary folder (--disk nvme says that there is one)"
        free = [d.free_bytes for d in disks if d.free_bytes is not None]
        needed = STATE_BYTES * case.model.params / case.nodes if case.workload.train == "full" else 0
        if free and max(free) < needed:
            return (
                f"{needed / 2**30:,.0f} GiB of states a node, and its NVMe disk has {max(free) / 2**30:,.0f} GiB free"
            )
        return None

    def locate(self, block: str, case: Case) -> dict[str, object]:
        disks = sorted(_list_nvme(case), key=lambda d: -(d.free_bytes or 0))
        return {f"{block}.nvme_path": next((d.path for d in disks if d.path), "nvme")}


def _list_nvme(case: Case) -> list[Disk]:
    return [d for d in case.hardware.disks if d.kind == "nvme"]
