"""compose.yaml: the same mounts as container.sh, for whoever starts containers with Compose."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Any

from generator.decide.plan import Plan
from generator.emit.plan_document import ConfigRecord, ImageRecord, ParallelRecord, ProjectPart

PROJECT = "/project"
"""where the Dockerfile puts the project, and both files mount its folder"""
CACHE = "/home/trainer/.cache/huggingface"
PATHS = ("model", "tokenizer", "data", "eval_data")
"""values of config.yaml that may be a path"""
PASSED = (
    "HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE",
    "WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_ENTITY", "WANDB_MODE", "WANDB_PROJECT",
    "MLFLOW_EXPERIMENT_NAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_URI",
    "MLFLOW_TRACKING_USERNAME",
)  # fmt: skip
"""Variables of whoever starts it that the run reads, each where it is set (container.sh has them too)."""
RUN_AS = "${RUN_AS:-1000:1000}"


def dump_compose(
    project: ProjectPart,
    config: ConfigRecord,
    image: ImageRecord,
    parallel: ParallelRecord | None,
    visible_devices: str | None,
    scratch: tuple[str, ...],
) -> str:
    """``scratch`` is what ``list_scratch`` gives."""
    import yaml

    service: dict[str, Any] = {
        "build": ".",
        "image": project.name,
        "user": RUN_AS,
        "init": True,
        "shm_size": image.shm_size,
        "stop_grace_period": f"{image.stop_seconds}s",
        "environment": [*PASSED],
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
    if parallel is not None and parallel.nodes > 1:
        service["network_mode"] = "host"
        service["environment"].append("MASTER_ADDR=${MASTER_ADDR:?the node at which all meet}")
    if config.serving:
        service["environment"].append("API_KEY")
        service["ports"] = [f"{config.serving.host}:{config.serving.port}:{config.serving.port}"]
    if project.device == "cuda":
        chosen = {"device_ids": visible_devices.split(",")} if visible_devices else {"count": "all"}
        reserved = {"driver": "nvidia", "capabilities": ["gpu"]} | chosen
        service["deploy"] = {"resources": {"reservations": {"devices": [reserved]}}}
    return yaml.safe_dump({"services": {project.mode: service}}, sort_keys=False, width=1000, allow_unicode=True)


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


def list_scratch(plan: Plan) -> tuple[str, ...]:
    """Folders of this machine that training writes to beside its run: DeepSpeed's, for what is offloaded to a disk."""
    folders = {str(value) for key, value in plan.edits.deepspeed if key.endswith(".nvme_path")}
    return tuple(sorted(folder for folder in folders if folder.startswith("/")))
