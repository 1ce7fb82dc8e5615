"""The allocation that this process is part of, from the variables that launchers and schedulers set."""

from __future__ import annotations

import re

from hwdetect.machine import Machine
from hwdetect.probes.reading import whole
from hwdetect.types import Nodes


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
        scheduler_gpus=_first(machine, "SLURM_GPUS_ON_NODE") or _listed(machine, "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"),
        scheduler_memory_bytes=_mebibytes(_first(machine, "SLURM_MEM_PER_NODE")),
        processes=_first(machine, "SLURM_NTASKS", "SLURM_NPROCS"),
        rank=_first(machine, "SLURM_PROCID"),
    )


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


def _mebibytes(count: int | None) -> int | None:
    return count << 20 if count else None


def _torchrun(machine: Machine) -> Nodes | None:
    world, local = _first(machine, "WORLD_SIZE"), _first(machine, "LOCAL_WORLD_SIZE")
    if world is None or (local is None and machine.environment("MASTER_ADDR") is None):
        return None
    return Nodes(
        count=max(1, -(-world // local)) if local else 1,
        source="torchrun",
        processes=world,
        rank=_first(machine, "RANK"),
    )


def _mpi(machine: Machine) -> Nodes | None:
    world = _first(machine, "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
    if world is None:
        return None
    local = _first(machine, "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE")
    return Nodes(
        count=max(1, -(-world // local)) if local else 1,
        source="mpi",
        processes=world,
        rank=_first(machine, "OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK"),
    )


def _kubernetes(machine: Machine) -> Nodes | None:
    if machine.environment("KUBERNETES_SERVICE_HOST") is None:
        return None
    return Nodes(count=max(1, _first(machine, "PET_NNODES") or 1), source="kubernetes")
