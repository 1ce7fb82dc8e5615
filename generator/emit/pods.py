"""What every pod of a project is in Kubernetes, whether it serves or trains: its user, its memory, its volumes, its resources."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

from generator.cost.constants import ENGINE_PROCESSES

SPARE = 1.25
"""of the predicted memory of a process on a CPU: what it may use before the node ends it"""
ENGINE_CPUS = int(ENGINE_PROCESSES)
"""beside one for each GPU"""
POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "runAsGroup": 1000,
    "fsGroup": 1000,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def name_object(project: str, mode: str = "infer") -> str:
    """It begins with a letter, as services, JobSets and TrainJobs ask (RFC 1035)."""
    name = project if project[0].isalpha() else f"{'train' if mode == 'train' else 'serve'}-{project}"
    return shorten_name(name, 60)


def shorten_name(name: str, most: int) -> str:
    """Two that begin alike stay two: what is applied under the name of another takes its volumes."""
    if len(name) <= most:
        return name
    return f"{name[: most - 7].rstrip('-')}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def describe_resources(
    gpus: Mapping[str, int],
    cpus: int | None,
    memory_gib: float,
    ports: Mapping[str, int] | None = None,
    least_gib: float = 0.0,
) -> dict[str, dict[str, Any]]:
    """A pod with GPUs may use what host memory its node has; one without ends before the node does, and leaves it a core.
    ``least_gib``: what it may use at most by its own limits."""
    if gpus:
        return {"requests": {"cpu": ENGINE_CPUS + sum(gpus.values())}, "limits": {**gpus, **(ports or {})}}
    memory = {"memory": f"{max(1, round(memory_gib * SPARE), math.ceil(least_gib))}Gi"}
    return {"requests": memory | ({"cpu": max(1, cpus - 1)} if cpus else {}), "limits": memory}


def explain_fabric(nodes: int, gpus: Mapping[str, int], ports: Mapping[str, int]) -> str:
    """Comment lines: what pods of several nodes need of their cluster, and cannot ask for in words that are the same in each.

    Kubernetes gives a capability only to root (https://github.com/NVIDIA/nvidia-container-toolkit/issues/2037 measured it: uid 1000 with
    IPC_LOCK locks no more than without), and Pod Security's baseline refuses IPC_LOCK: who trains here is not root, so it is not asked for.
    """
    if nodes == 1 or not gpus:
        return ""
    name, count = next(iter(gpus.items()))
    asks = (
        (
            f"{' and '.join(ports)} is counted by EFA's device plugin. NCCL takes EFA through aws-ofi-nccl alone, which the",
            "Dockerfile does not install: begin the image with one that has AWS's EFA installer.",
        )
        if ports
        else (
            f"NCCL reaches InfiniBand and RoCE only where the cluster gives their ports to the pod. Ask for them beside {name},",
            f"by the name that `kubectl describe node` shows: rdma/NAME: 1 where it is shared, {count} where each GPU has its own.",
        )
    )
    locks = (
        "RDMA locks memory: containerd on the nodes needs LimitMEMLOCK=infinity (IPC_LOCK is lost to a user who is not root).",
        "Without either, NCCL goes over TCP and does not say so: PROGRAM=preflight.py in env measures it.",
    )
    return "".join(f"# {line}\n" for line in (*asks, *locks))


def explain_group(file: str | None) -> str:
    """Comment lines: a pod of whoever is not root cannot open the devices, and only the node knows their group's number
    (https://github.com/ROCm/k8s-device-plugin/issues/39)."""
    if file is None:
        return ""
    lines = (
        f"The pod is not root's, and its GPUs are a group's where `stat -c '%a %g' {file}` on a node begins with 660: write the",
        "number behind it below, beside runAsGroup, as supplementalGroups: [NUMBER]. Without it PyTorch sees no GPU.",
    )
    return "".join(f"# {line}\n" for line in lines)


def describe_claim(name: str, labels: Mapping[str, str], gib: int, *, shared: bool = False) -> dict[str, Any]:
    """A disk of the cluster; ``shared``: several nodes write to it."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "labels": {**labels}},
        "spec": {
            "accessModes": ["ReadWriteMany" if shared else "ReadWriteOnce"],
            "resources": {"requests": {"storage": f"{gib}Gi"}},
        },
    }


def describe_shared_memory(several: bool) -> dict[str, Any]:
    """/dev/shm: Kubernetes' own has 64 MB, and the processes of a node hand each other more."""
    return {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi" if several else "1Gi"}}


def read_secrets(secret: str, variables: tuple[str, ...], required: str | None = None) -> list[dict[str, Any]]:
    """Environment variables from ``secret``, which its owner makes."""
    return [
        {
            "name": variable,
            "valueFrom": {"secretKeyRef": {"name": secret, "key": variable, "optional": variable != required}},
        }
        for variable in variables
    ]


def size_claim(files_gib: float, least: int = 20) -> int:
    """GiB: the files, half as much again for those of the next revision; what is compiled has room in the default's ``least``."""
    return max(least, round(1.5 * files_gib))
