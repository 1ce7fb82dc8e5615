"""trainjob.yaml and jobset.yaml: the training on Kubernetes, by Kubeflow's Trainer or by a JobSet alone.

Fields as in kubeflow-trainer-api 2.3.0 (TrainJob v1alpha1, JobSet v1alpha2), which tests/launchers reads them with.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from generator.emit.container import CACHE, HUB, PATHS, PROJECT
from generator.emit.plan_document import ConfigRecord, LaunchRecord, ProjectPart
from generator.emit.pods import (
    CONTAINER_SECURITY,
    POD_SECURITY,
    describe_claim,
    describe_resources,
    describe_shared_memory,
    explain_fabric,
    explain_group,
    read_secrets,
    shorten_name,
    size_claim,
)

JOB = "node"
"""the replicated job and the container that Kubeflow's runtime torch-distributed has (manifests/base/runtimes)"""
RUNTIME = "torch-distributed"
LONGEST_NAME = 40
"""a pod is called NAME-node-0-INDEX, and a host name ends at 63"""
RESTARTS = 10
"""of a JobSet whose pods failed: each goes on from the newest whole checkpoint (ours)"""
SECRETS = (*HUB, "WANDB_API_KEY")


@dataclass(frozen=True, slots=True, kw_only=True)
class Disks:
    """GiB that the volumes of a training hold."""

    model_gib: float
    runs_gib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A volume in the container: ``path``, and the folder ``below`` of the claim that is seen there."""

    volume: str
    path: str
    below: str | None = None


def dump_train_job(project: ProjectPart, config: ConfigRecord, launch: LaunchRecord, disks: Disks) -> str:
    """Claims and a TrainJob. Its runtime starts the pods, and says in PET_MASTER_ADDR where the first is."""
    name, mounts = name_job(launch), list_mounts(config)
    start = " ".join(launch.script)
    meet = f'exec env MASTER_ADDR="$PET_MASTER_ADDR" {start} "$@"' if launch.port else f'exec {start} "$@"'
    patch = {
        "containers": [
            {"name": JOB, "volumeMounts": describe_mounts(mounts), "securityContext": CONTAINER_SECURITY},
        ],
        "securityContext": POD_SECURITY,
        "terminationGracePeriodSeconds": launch.grace_seconds,
        "volumes": describe_volumes(name, mounts, launch),
    }
    job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {
            "runtimeRef": {"name": RUNTIME},
            "trainer": {
                "image": f"{project.name}:latest",
                "command": ["sh", "-c", meet, "train"],
                "env": read_secrets(name, SECRETS),
                "numNodes": launch.nodes,
                "numProcPerNode": launch.per_node,
                "resourcesPerNode": describe_resources(launch.gpus, launch.cpus, launch.memory_gib, launch.ports),
            },
            "runtimePatches": [
                {
                    "manager": "perfgen",
                    "trainingRuntimeSpec": {
                        "template": {
                            "spec": {
                                "replicatedJobs": [{"name": JOB, "template": {"spec": {"template": {"spec": patch}}}}]
                            }
                        }
                    },
                }
            ],
        },
    }
    advice = explain_job(config, launch)
    return advice + dump_documents([*list_claims(name, mounts, launch, disks), job])


def dump_job_set(project: ProjectPart, config: ConfigRecord, launch: LaunchRecord, disks: Disks) -> str:
    """Claims and a JobSet of one indexed Job: a pod a node, all started anew where one fails."""
    name, mounts = name_job(launch), list_mounts(config)
    container = {
        "name": JOB,
        "image": f"{project.name}:latest",
        "imagePullPolicy": "IfNotPresent",
        "command": [*launch.script],
        "env": [{"name": "MASTER_ADDR", "value": f"{name}-{JOB}-0-0.{name}"}, *read_secrets(name, SECRETS)],
        "resources": describe_resources(launch.gpus, launch.cpus, launch.memory_gib, launch.ports),
        "volumeMounts": describe_mounts(mounts),
        "securityContext": CONTAINER_SECURITY,
    }
    pod = {
        "restartPolicy": "Never",  # a node alone cannot come back into a group that goes on: the JobSet starts all anew
        "terminationGracePeriodSeconds": launch.grace_seconds,
        "automountServiceAccountToken": False,
        "securityContext": POD_SECURITY,
        "containers": [container],
        "volumes": describe_volumes(name, mounts, launch),
    }
    job = {
        "completionMode": "Indexed",
        "completions": launch.nodes,
        "parallelism": launch.nodes,
        "backoffLimit": 0,
        "template": {"spec": pod},
    }
    job_set = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": {"maxRestarts": RESTARTS},
            "network": {"enableDNSHostnames": True, "subdomain": name},
            "replicatedJobs": [{"name": JOB, "replicas": 1, "template": {"spec": job}}],
        },
    }
    advice = explain_job(config, launch)
    return advice + dump_documents([*list_claims(name, mounts, launch, disks), job_set])


def explain_job(config: ConfigRecord, launch: LaunchRecord) -> str:
    fabric = explain_fabric(launch.nodes, launch.gpus, launch.ports)
    return explain_inputs(config) + explain_group(launch.group_file) + fabric


def dump_documents(documents: list[dict[str, Any]]) -> str:
    import yaml

    return yaml.safe_dump_all(documents, sort_keys=False, width=1000, allow_unicode=True)


def name_job(launch: LaunchRecord) -> str:
    return shorten_name(launch.name, LONGEST_NAME)


def list_mounts(config: ConfigRecord) -> tuple[Mount, ...]:
    """The cache of the hub, the runs, and whatever config.yaml names by a path."""
    folders = (Mount(volume="cache", path=CACHE), Mount(volume="runs", path=f"{PROJECT}/{config.output_dir}"))
    return (*folders, *list_inputs(config))


def list_inputs(config: ConfigRecord) -> Iterator[Mount]:
    """Each place once: what lies in another one's folder is put there, for a volume in a volume that is read only cannot begin."""
    placed: dict[str, Mount] = {}
    for mount in place_inputs(config):
        if explain_place(mount) is None:
            placed.setdefault(mount.path, mount)
    for path, mount in placed.items():
        if not any(path.startswith(f"{other}/") for other in placed):
            yield mount


def explain_place(mount: Mount) -> str | None:
    """Why no volume can be there."""
    if mount.path == PROJECT:
        return "it would hide the code"
    return "Kubernetes takes no path with a colon" if ":" in mount.path else None


def explain_inputs(config: ConfigRecord) -> str:
    """Comment lines: what config.yaml names and no volume can bring."""
    refused = [(mount.below, explain_place(mount)) for mount in place_inputs(config)]
    return "".join(
        f"# {below.partition('/')[0]}: there is no volume for it where config.yaml looks, {reason}. Give it a folder of its own.\n"
        for below, reason in refused
        if below and reason
    )


def place_inputs(config: ConfigRecord) -> Iterator[Mount]:
    """Each path under the name of its key; of a pattern its folder."""
    for key in PATHS:
        value = getattr(config, key)
        if isinstance(value, str) and value.startswith(("/", "./", "../")):
            path = posixpath.normpath(posixpath.join(PROJECT, value))
            folder, name = posixpath.split(path)
            within = f"{key}/{name}" if "." in name else key  # a file stands below its key, under its own name
            yield Mount(volume="inputs", path=folder if "*" in name else path, below=key if "*" in name else within)


def list_claims(name: str, mounts: tuple[Mount, ...], launch: LaunchRecord, disks: Disks) -> list[dict[str, Any]]:
    """Disks of the cluster, which every node writes to: each volume by the job's name and its own."""
    sizes = {
        "cache": size_claim(disks.model_gib),
        "runs": size_claim(disks.runs_gib),
        "inputs": size_claim(disks.model_gib),
    }
    used = dict.fromkeys(mount.volume for mount in mounts)
    return [
        describe_claim(f"{name}-{volume}", {"app": name}, sizes[volume], shared=launch.nodes > 1) for volume in used
    ]


def describe_volumes(name: str, mounts: tuple[Mount, ...], launch: LaunchRecord) -> list[dict[str, Any]]:
    used = dict.fromkeys(mount.volume for mount in mounts)
    claimed = [{"name": v, "persistentVolumeClaim": {"claimName": f"{name}-{v}"}} for v in used]
    return [*claimed, describe_shared_memory(launch.per_node > 1)]


def describe_mounts(mounts: tuple[Mount, ...]) -> list[dict[str, Any]]:
    """Inputs are read, the others written too."""
    shared_memory = {"name": "shm", "mountPath": "/dev/shm"}
    return [
        *(
            {"name": mount.volume, "mountPath": mount.path}
            | ({"subPath": mount.below, "readOnly": True} if mount.below else {})
            for mount in mounts
        ),
        shared_memory,
    ]
