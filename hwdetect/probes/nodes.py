"""The allocation that this process is part of, from the variables that launchers and schedulers set."""

from __future__ import annotations

import re

from hwdetect.machine import Machine
from hwdetect.probes.reading import whole
from hwdetect.types import Nodes

WORLDS = ("OMPI_COMM_WORLD", "PMI", "PMIX", "MV2_COMM_WORLD", "PALS")


def read_nodes(machine: Machine) -> Nodes:
    """Slurm before torchrun before MPI before Kubernetes: the outer one knows the allocation."""
    for reader in (_slurm, _torchrun, _mpi, _kubernetes):
        found = reader(machine)
        if found is not None:
            return found
    return Nodes()


def _first(machine: Machine, *names: str) -> int | None:
    return next((n for name in names if (n := whole(machine.environment(name))) is not None and n >= 0), None)


def _slurm(machine: Machine) -> Nodes | None:
    if machine.environment("SLURM_JOB_ID") is None and machine.environment("SLURM_JOBID") is None:
        return None
    return Nodes(
        count=max(1, _first(machine, "SLURM_JOB_NUM_NODES", "SLURM_NNODES") or 1),
        source="slurm",
        scheduler_cpus=_first(machine, "SLURM_CPUS_ON_NODE", "SLURM_CPUS_PER_TASK"),
        scheduler_gpus=_slurm_gpus(machine),
        scheduler_memory_bytes=_slurm_memory(machine),
        processes=_first(machine, "SLURM_NTASKS", "SLURM_NPROCS"),
        rank=_first(machine, "SLURM_PROCID"),
    )


def _slurm_gpus(machine: Machine) -> int | None:
    asked = re.fullmatch(r"(?:[\w.-]+:)?(\d{1,3})", machine.environment("SLURM_GPUS_PER_NODE") or "")  # "a100:4"
    found = _first(machine, "SLURM_GPUS_ON_NODE") or _listed(machine, "SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
    return found or (int(asked.group(1)) if asked else None)


def _slurm_memory(machine: Machine) -> int | None:
    """The job's memory on this node: Slurm gives it by node, by CPU or by GPU, in MiB."""
    for each, count in (
        ("SLURM_MEM_PER_NODE", 1),
        ("SLURM_MEM_PER_CPU", _first(machine, "SLURM_CPUS_ON_NODE")),
        ("SLURM_MEM_PER_GPU", _slurm_gpus(machine)),
    ):
        size = _first(machine, each)
        if size and count:
            return size * count << 20
    return None


def _listed(machine: Machine, *names: str) -> int | None:
    """How many devices a list such as ``0,1,3`` or ``0-3`` names."""
    text = next((t for name in names if (t := machine.environment(name))), None)
    if text is None:
        return None
    total = 0
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,4})(?:-(\d{1,4}))?\s*", part)
        total += 1 if match is None or match.group(2) is None else abs(int(match.group(2)) - int(match.group(1))) + 1
    return total


def _torchrun(machine: Machine) -> Nodes | None:
    world, local = _first(machine, "WORLD_SIZE"), _first(machine, "LOCAL_WORLD_SIZE")
    if world is None or (local is None and machine.environment("MASTER_ADDR") is None):
        return None
    return Nodes(
        count=max(1, -(-world // local)) if local else _first(machine, "GROUP_WORLD_SIZE") or _elastic(machine) or 1,
        source="torchrun",
        processes=world,
        rank=_first(machine, "RANK"),
    )


def _mpi(machine: Machine) -> Nodes | None:
    # Open MPI; MPICH and Intel MPI (Hydra); MVAPICH2; Cray PALS; jsrun.
    world = _first(machine, *(f"{name}_SIZE" for name in WORLDS), "JSM_NAMESPACE_SIZE")
    if world is None:
        return None
    local = _first(machine, "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE",
                   "PALS_LOCAL_SIZE", "JSM_NAMESPACE_LOCAL_SIZE")  # fmt: skip
    return Nodes(
        count=max(1, -(-world // local)) if local else 1,
        source="mpi",
        processes=world,
        rank=_first(machine, *(f"{name}_RANK" for name in WORLDS), "JSM_NAMESPACE_RANK"),
    )


def _kubernetes(machine: Machine) -> Nodes | None:
    if machine.environment("KUBERNETES_SERVICE_HOST") is None:
        return None
    return Nodes(count=_elastic(machine) or 1, source="kubernetes")


def _elastic(machine: Machine) -> int | None:
    """``PET_NNODES`` of the training operators: a number, or least and most (``1:4``), of which the least is sure."""
    match = re.fullmatch(r"(\d{1,5})(?::\d{1,5})?", machine.environment("PET_NNODES") or "")
    return max(1, int(match.group(1))) if match else None
