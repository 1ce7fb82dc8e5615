"""The allocation that this process is part of, from the variables that launchers and schedulers set."""

from __future__ import annotations

import re

from hwdetect.machine.protocol import Machine
from hwdetect.probes.parsing import parse_integer
from hwdetect.types import Nodes

WORLDS = ("OMPI_COMM_WORLD", "PMI", "PMIX", "MV2_COMM_WORLD", "PALS")


def read_nodes(machine: Machine) -> Nodes:
    """The schedulers before torchrun before MPI before Kubernetes: the outer one knows the allocation."""
    for reader in (_read_slurm, _read_pbs, _read_lsf, _read_torchrun, _read_mpi, _read_kubernetes):
        nodes = reader(machine)
        if nodes is not None:
            return nodes
    return Nodes()


def _read_first(machine: Machine, *names: str) -> int | None:
    return next((n for name in names if (n := parse_integer(machine.get_variable(name))) is not None and n >= 0), None)


def _read_slurm(machine: Machine) -> Nodes | None:
    if machine.get_variable("SLURM_JOB_ID") is None and machine.get_variable("SLURM_JOBID") is None:
        return None
    return Nodes(
        count=max(1, _read_first(machine, "SLURM_JOB_NUM_NODES", "SLURM_NNODES") or 1),
        source="slurm",
        scheduler_cpus=_read_first(machine, "SLURM_CPUS_ON_NODE", "SLURM_CPUS_PER_TASK"),
        scheduler_gpus=_count_slurm_gpus(machine),
        scheduler_memory_bytes=_read_slurm_memory(machine),
        processes=_read_first(machine, "SLURM_NTASKS", "SLURM_NPROCS"),
        rank=_read_first(machine, "SLURM_PROCID"),
    )


def _read_pbs(machine: Machine) -> Nodes | None:
    """PBS Pro and OpenPBS (``NCPUS``, ``PBS_NODEFILE``: a line a task) and Torque (``PBS_NUM_NODES``, ``PBS_NUM_PPN``)."""
    if machine.get_variable("PBS_JOBID") is None:
        return None
    listed = (machine.read((machine.get_variable("PBS_NODEFILE") or "").lstrip("/") or "none") or "").split()
    return Nodes(
        count=max(1, len(set(listed)) or _read_first(machine, "PBS_NUM_NODES") or 1),
        source="pbs",
        scheduler_cpus=_read_first(machine, "NCPUS", "PBS_NCPUS", "PBS_NUM_PPN"),
        scheduler_gpus=_read_first(machine, "NGPUS", "PBS_NGPUS"),
        processes=len(listed) or _read_first(machine, "PBS_NP"),
    )


def _read_lsf(machine: Machine) -> Nodes | None:
    """``LSB_MCPU_HOSTS`` has each host and its slots, first the one that starts the job: ``batch1 1 gpu01 42 gpu02 42``."""
    if machine.get_variable("LSB_JOBID") is None:
        return None
    words = (machine.get_variable("LSB_MCPU_HOSTS") or "").split()
    slots = {
        host: number for host, text in zip(words[::2], words[1::2], strict=False) if (number := parse_integer(text))
    }
    listed = (machine.get_variable("LSB_HOSTS") or "").split()
    here = (machine.read("proc/sys/kernel/hostname") or "").strip().partition(".")[0]
    # On machines with separate launch nodes (Summit, Sierra) the first host has one slot and no GPU.
    working = {host: n for host, n in slots.items() if n > 1 or len(slots) == 1} or slots
    return Nodes(
        count=max(1, len(working) or len(set(listed)) or 1),
        source="lsf",
        scheduler_cpus=next((n for host, n in slots.items() if host.partition(".")[0] == here), None)
        or (next(iter(working.values())) if len(working) == 1 else None),
        processes=_read_first(machine, "LSB_DJOB_NUMPROC"),
    )


def _count_slurm_gpus(machine: Machine) -> int | None:
    asked = re.fullmatch(r"(?:[\w.-]+:)?(\d{1,3})", machine.get_variable("SLURM_GPUS_PER_NODE") or "")  # "a100:4"
    count = _read_first(machine, "SLURM_GPUS_ON_NODE") or _count_listed(machine, "SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
    return count or (int(asked.group(1)) if asked else None)


def _read_slurm_memory(machine: Machine) -> int | None:
    """The job's memory on this node: Slurm gives it by node, by CPU or by GPU, in MiB."""
    for each, count in (
        ("SLURM_MEM_PER_NODE", 1),
        ("SLURM_MEM_PER_CPU", _read_first(machine, "SLURM_CPUS_ON_NODE")),
        ("SLURM_MEM_PER_GPU", _count_slurm_gpus(machine)),
    ):
        size = _read_first(machine, each)
        if size and count:
            return size * count << 20  # MiB
    return None


def _count_listed(machine: Machine, *names: str) -> int | None:
    """How many devices a list such as ``0,1,3`` or ``0-3`` names."""
    text = next((t for name in names if (t := machine.get_variable(name))), None)
    if text is None:
        return None
    total = 0
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,4})(?:-(\d{1,4}))?\s*", part)
        total += 1 if match is None or match.group(2) is None else abs(int(match.group(2)) - int(match.group(1))) + 1
    return total


def _read_torchrun(machine: Machine) -> Nodes | None:
    world, local = _read_first(machine, "WORLD_SIZE"), _read_first(machine, "LOCAL_WORLD_SIZE")
    if world is None or (local is None and machine.get_variable("MASTER_ADDR") is None):
        return None
    return Nodes(
        count=max(1, -(-world // local))
        if local
        else _read_first(machine, "GROUP_WORLD_SIZE") or _read_elastic_nodes(machine) or 1,
        source="torchrun",
        processes=world,
        rank=_read_first(machine, "RANK"),
    )


def _read_mpi(machine: Machine) -> Nodes | None:
    # Open MPI; MPICH and Intel MPI (Hydra); MVAPICH2; Cray PALS; jsrun.
    world = _read_first(machine, *(f"{name}_SIZE" for name in WORLDS), "JSM_NAMESPACE_SIZE")
    if world is None:
        return None
    local = _read_first(machine, "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE",
                   "PALS_LOCAL_SIZE", "JSM_NAMESPACE_LOCAL_SIZE")  # fmt: skip
    return Nodes(
        count=max(1, -(-world // local)) if local else 1,
        source="mpi",
        processes=world,
        rank=_read_first(machine, *(f"{name}_RANK" for name in WORLDS), "JSM_NAMESPACE_RANK"),
    )


def _read_kubernetes(machine: Machine) -> Nodes | None:
    if machine.get_variable("KUBERNETES_SERVICE_HOST") is None:
        return None
    return Nodes(count=_read_elastic_nodes(machine) or 1, source="kubernetes")


def _read_elastic_nodes(machine: Machine) -> int | None:
    """``PET_NNODES`` of the training operators: a number, or least and most (``1:4``), of which the least is sure."""
    match = re.fullmatch(r"(\d{1,5})(?::\d{1,5})?", machine.get_variable("PET_NNODES") or "")
    return max(1, int(match.group(1))) if match else None
