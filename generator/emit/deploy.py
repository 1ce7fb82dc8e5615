"""serve.k8s.yaml: the server as a Kubernetes deployment, with its service and the claim that keeps what is downloaded."""

from __future__ import annotations

from typing import Any

from generator.emit.container import CACHE
from generator.emit.plan_document import ConfigRecord, ProjectPart, ServerRecord

STARTS_SECONDS = 1800
"""that a server may take to load, compile and capture before it is started anew (ours: a 70B model from a network disk)"""
SPARE = 1.25
"""of the predicted memory of a process on a CPU: what it may use before the node ends it"""


def dump_deployment(
    project: ProjectPart, config: ConfigRecord, server: ServerRecord, gpus: int, cpus: int | None, gib: float
) -> str:
    """``gpus`` and ``cpus`` of one pod; ``gib``: predicted memory of the process, where there is no GPU."""
    import yaml

    name, port = project.name, config.serving.port
    labels = {"app": name}
    probe = {"path": "/health", "port": "http"}
    container: dict[str, Any] = {
        "name": "serve",
        "image": f"{name}:latest",
        "imagePullPolicy": "IfNotPresent",
        "args": ["python", "server.py", "--host", "0.0.0.0"],
        "ports": [{"name": "http", "containerPort": port}],
        "env": [
            {
                "name": variable,
                "valueFrom": {"secretKeyRef": {"name": name, "key": variable, "optional": variable != "API_KEY"}},
            }
            for variable in ("API_KEY", "HF_TOKEN")
        ],
        "startupProbe": {"httpGet": {**probe}, "periodSeconds": 10, "failureThreshold": STARTS_SECONDS // 10},
        "readinessProbe": {"httpGet": {**probe}, "periodSeconds": 5},
        "livenessProbe": {"httpGet": {**probe}, "periodSeconds": 30, "failureThreshold": 4},
        "resources": describe_resources(gpus, cpus, gib),
        "volumeMounts": [{"name": "cache", "mountPath": CACHE}, {"name": "shm", "mountPath": "/dev/shm"}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    pod = {
        "terminationGracePeriodSeconds": server.grace_seconds + 5,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "fsGroup": 1000},
        "containers": [container],
        "volumes": [
            {"name": "cache", "persistentVolumeClaim": {"claimName": f"{name}-cache"}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi" if gpus else "1Gi"}},
        ],
    }
    documents: list[dict[str, Any]] = [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": f"{name}-cache", "labels": {**labels}},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": f"{claim_gib(gib)}Gi"}}},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "labels": {**labels}},
            "spec": {
                "replicas": 1,
                "strategy": {"type": "Recreate"},  # two at once would want twice the devices, and the one claim
                "selector": {"matchLabels": {**labels}},
                "template": {"metadata": {"labels": {**labels}}, "spec": pod},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "labels": {**labels}},
            "spec": {"selector": {**labels}, "ports": [{"name": "http", "port": port, "targetPort": "http"}]},
        },
    ]
    return yaml.safe_dump_all(documents, sort_keys=False, width=1000, allow_unicode=True)


def describe_resources(gpus: int, cpus: int | None, gib: float) -> dict[str, dict[str, Any]]:
    """A pod with GPUs may use what host memory its node has; one without ends before the node does."""
    if gpus:
        return {"limits": {"nvidia.com/gpu": gpus}}
    memory = {"memory": f"{max(1, round(gib * SPARE))}Gi"}
    return {"requests": memory | ({"cpu": cpus} if cpus else {}), "limits": memory}


def claim_gib(gib: float) -> int:
    """Room for the model's files, twice: a download is complete before it takes its place."""
    return max(20, round(2 * gib))
