"""serve.k8s.yaml: the server as a Kubernetes deployment, with its service and the claims that keep what it reads."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from generator.emit.container import HOME_CACHE, PROJECT, STOP_MARGIN_SECONDS
from generator.emit.plan_document import ConfigRecord, ProjectPart, ServerRecord
from generator.emit.pods import (
    CONTAINER_SECURITY,
    POD_SECURITY,
    describe_claim,
    describe_resources,
    describe_shared_memory,
    explain_group,
    name_object,
    read_secrets,
    size_claim,
)

START_SECONDS = 900
"""that a server may take to compile, capture graphs and warm up before it is started anew (ours)"""
READ = ("model", "adapter", "tokenizer", "draft_model")
"""What a server reads of config.yaml that may be a path, beginning with one of ``MARKS``."""
MARKS = ("/", "./", "../")
LOAD_GIB_PER_S = 0.05
"""at which the model's files come from a slow hub or network disk (ours): what is added to that"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodNeeds:
    """What one server takes: ``devices`` by Kubernetes' name of the resource, ``cpus`` of a machine without, ``memory_gib`` of the
    process there and ``filled_gib`` once its requests are as long as it takes them, ``files_gib`` on a disk of what it reads, by the
    keys of ``READ``. ``group_file``: as a vendor has it."""

    devices: Mapping[str, int]
    cpus: int | None
    memory_gib: float
    filled_gib: float
    files_gib: Mapping[str, float]
    group_file: str | None


def dump_deployment(project: ProjectPart, config: ConfigRecord, server: ServerRecord, needs: PodNeeds) -> str:
    """Claims, deployment and service, as YAML documents."""
    import yaml

    name, port = name_object(project.name), config.serving.port
    labels = {"app": name}
    folders = list_folders(config)
    claims = {f"{name}-{volume}": (volume, path) for volume, path in [("cache", HOME_CACHE), *folders.items()]}
    sizes = size_volumes(folders, needs.files_gib)
    starts = START_SECONDS + round(sum(needs.files_gib.values()) / LOAD_GIB_PER_S)
    container: dict[str, Any] = {
        "name": "serve",
        "image": f"{project.name}:latest",
        "imagePullPolicy": "IfNotPresent",
        "ports": [{"name": "http", "containerPort": port}],
        "env": read_secrets(name, ("API_KEY", "HF_TOKEN"), required="API_KEY"),
        # a busy server answers late: that alone is no reason to take it from its users, or to end it
        "startupProbe": describe_probe(period=10, timeout=5, failures=-(-starts // 10)),
        "readinessProbe": describe_probe(period=5, timeout=5, failures=3),
        "livenessProbe": describe_probe(period=30, timeout=20, failures=4),
        "resources": describe_resources(needs.devices, needs.cpus, needs.memory_gib, least_gib=needs.filled_gib),
        "volumeMounts": [
            *(
                {"name": volume, "mountPath": path} | ({"readOnly": True} if volume in folders else {})
                for volume, path in claims.values()
            ),
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
        "securityContext": CONTAINER_SECURITY,
    }
    pod = {
        "terminationGracePeriodSeconds": server.grace_seconds + STOP_MARGIN_SECONDS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # a service named vllm would set VLLM_PORT, which vLLM takes for its own
        "securityContext": POD_SECURITY,
        "containers": [container],
        "volumes": [
            *({"name": volume, "persistentVolumeClaim": {"claimName": claim}} for claim, (volume, _) in claims.items()),
            describe_shared_memory(sum(needs.devices.values()) > 1),
        ],
    }
    documents: list[dict[str, Any]] = [
        *(describe_claim(claim, labels, sizes[volume]) for claim, (volume, _) in claims.items()),
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "labels": {**labels}},
            "spec": {
                "replicas": 1,
                "progressDeadlineSeconds": starts + 600,  # the image is pulled before
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
    return explain_group(needs.group_file) + yaml.safe_dump_all(
        documents, sort_keys=False, width=1000, allow_unicode=True
    )


def describe_probe(period: int, timeout: int, failures: int) -> dict[str, Any]:
    """Seconds; how often in a row it may fail."""
    asked = {"path": "/health", "port": "http"}
    return {"httpGet": asked, "periodSeconds": period, "timeoutSeconds": timeout, "failureThreshold": failures}


def list_folders(config: ConfigRecord) -> dict[str, str]:
    """By volume: where the container finds what is a path of config.yaml."""
    values = {name_volume(key): getattr(config, key) for key in READ}
    places = {key: value for key, value in values.items() if isinstance(value, str) and value.startswith(MARKS)}
    return {key: posixpath.normpath(posixpath.join(PROJECT, value)) for key, value in places.items()}


def name_volume(key: str) -> str:
    return key.replace("_", "-")


def size_volumes(folders: Mapping[str, str], files_gib: Mapping[str, float]) -> dict[str, int]:
    """GiB of each claim: a folder holds its own files, and the cache what comes from the hub."""
    own = {name_volume(key): gib for key, gib in files_gib.items()}
    fetched = sum(gib for volume, gib in own.items() if volume not in folders)
    return {"cache": size_claim(fetched)} | {volume: size_claim(own[volume], least=1) for volume in folders}
