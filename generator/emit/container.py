"""compose.yaml: the same mounts as container.sh, for whoever starts containers with Compose."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Any

from generator.case.layout import Layout
from generator.case.vendors import Container
from generator.decide.plan import Plan
from generator.emit.plan_document import ConfigRecord, ImageRecord, ProjectPart, ServingConfig

PROJECT = "/project"
"""where the Dockerfile puts the project, and both files mount its folder"""
HOME_CACHE = "/home/trainer/.cache"
CACHE = f"{HOME_CACHE}/huggingface"
STOP_MARGIN_SECONDS = 10
"""after a server has cut what it was writing: until it is killed"""
STARTS_AFTER = "30m"
"""within which a server that does not answer yet is called starting, not unhealthy"""
PATHS = ("model", "adapter", "tokenizer", "draft_model", "data", "eval_data")
"""values of config.yaml that may be a path"""
HUB = ("HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE")
PASSED = (
    *HUB,
    "WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_ENTITY", "WANDB_MODE", "WANDB_PROJECT",
    "MLFLOW_EXPERIMENT_NAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_URI",
    "MLFLOW_TRACKING_USERNAME",
)  # fmt: skip
"""Variables of whoever starts it that the run reads, each where it is set (container.sh has them too)."""
ADDRESSES = ("PET_LOCAL_ADDR", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""By which nodes reach each other: addresses.py finds out what is not set."""
RUN_AS = "${RUN_AS:-1000:1000}"


def dump_compose(
    project: ProjectPart,
    config: ConfigRecord,
    image: ImageRecord,
    layout: Layout,
    container: Container,
    scratch: tuple[str, ...],
) -> str:
    """``container`` is what reaches the devices, ``scratch`` what ``list_scratch`` gives."""
    import yaml

    service: dict[str, Any] = {
        "build": ".",
        "image": project.name,
        "user": RUN_AS,
        "init": True,
        "shm_size": image.shm_size,
        "stop_grace_period": f"{image.stop_seconds}s",
        "environment": [*(PASSED if project.mode == "train" else HUB)],
        "volumes": [
            describe_mount(".", PROJECT),
            describe_mount("${HF_HOME:-${HOME}/.cache/huggingface}", CACHE),
            *(
                describe_mount(escape_dollars(source), escape_dollars(target), read_only=True)
                for source, target in list_mounts(config)
            ),
            *(describe_mount(escape_dollars(folder), escape_dollars(folder)) for folder in scratch),
        ],
    }
    if layout.nodes > 1:
        service["network_mode"] = "host"
        service["environment"] += ADDRESSES
        service["environment"].append("MASTER_ADDR=${MASTER_ADDR:?the node at which all meet}")
        if config.machine.device != "cpu":  # RDMA reads and writes memory that stays where it is
            service["ulimits"] = {"memlock": -1}
    if config.serving:
        service |= describe_service(config.serving, layout)
        service["environment"] += [
            "API_KEY",
            *(["NODE_RANK=${NODE_RANK:?0 to " + f"{layout.nodes - 1}}}"] if layout.nodes > 1 else []),
        ]
    service["environment"] += container.compose_environment
    service |= container.compose
    named = {"serve" if config.serving else project.mode: service}
    return yaml.safe_dump({"services": named}, sort_keys=False, width=1000, allow_unicode=True)


def describe_service(serving: ServingConfig, layout: Layout) -> dict[str, Any]:
    """What a server has beside: its port on this machine alone, started anew where it fails. Several nodes meet by the host's network,
    where the server itself keeps to this machine."""
    ask = f"import urllib.request as r; r.urlopen('http://127.0.0.1:{serving.port}/health', timeout=20)"
    check = {"test": ["CMD", "python", "-c", ask], "interval": "30s", "timeout": "30s", "start_period": STARTS_AFTER}
    if layout.nodes > 1:
        return {"restart": "unless-stopped"}
    return {
        "restart": "unless-stopped",
        "ports": [f"{serving.host}:{serving.port}:{serving.port}"],
        "healthcheck": check,
    }


def describe_mount(source: str, target: str, read_only: bool = False) -> dict[str, Any]:
    """One that is refused where ``source`` is missing: what the engine makes itself would belong to root."""
    kept = {"read_only": True} if read_only else {}
    return {"type": "bind", "source": source, "target": target} | kept | {"bind": {"create_host_path": False}}


def list_mounts(config: ConfigRecord) -> Iterator[tuple[str, str]]:
    """What lies outside the project: where it is, and where the container finds it by the words of config.yaml."""
    values = {getattr(config, name) for name in PATHS}
    for path in sorted(value for value in values if isinstance(value, str) and value.startswith(("/", "../"))):
        folder, name = posixpath.split(path)
        if "*" in name:
            path = folder
        if "/models--" in path:  # a snapshot of the hub's cache holds links to the files beside it
            path = path.partition("/snapshots/")[0]
        yield path, posixpath.normpath(posixpath.join(PROJECT, path))


def escape_dollars(text: str) -> str:
    """Compose replaces `$NAME`."""
    return text.replace("$", "$$")


def reach_devices(plan: Plan, visible: str | None) -> Container:
    """What a container needs to reach the devices of the plan, of which ``visible`` are numbers, all where it is ``None``."""
    contain = plan.case.vendor.contain
    return contain(visible, plan.case.device) if contain else Container()


def list_scratch(plan: Plan) -> tuple[str, ...]:
    """Folders of this machine that training writes to beside its run: DeepSpeed's, for what is offloaded to a disk."""
    folders = {str(value) for key, value in plan.edits.deepspeed if key.endswith(".nvme_path")}
    return tuple(sorted(folder for folder in folders if folder.startswith("/")))
