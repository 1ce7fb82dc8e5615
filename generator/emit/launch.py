"""The launch description, and the files of launchers that are dumped from it; Slurm, ssh and MPI have templates of their own."""

from __future__ import annotations

import math
from collections.abc import Iterator

from generator.decide.plan import Plan
from generator.emit.jobs import Disks, dump_job_set, dump_train_job
from generator.emit.plan_document import (
    ConfigRecord,
    LaunchRecord,
    ParallelRecord,
    ProjectPart,
    SavingRecord,
    ServerRecord,
)
from generator.emit.pods import SPARE, name_object
from generator.emit.server import measure_files
from generator.emit.skypilot import dump_task
from generator.techniques.edits import Edits
from generator.techniques.launch import PORT

SERVE = ("./serve.sh", "--host", "0.0.0.0")
KEPT_CHECKPOINTS = 4
"""room for the two that a run keeps, the one that is being written, and the model"""
EFA = "vpc.amazonaws.com/efa"
"""https://docs.aws.amazon.com/eks/latest/userguide/device-management-efa.html"""
WHOLE = "network"
"""the port of an instance whose cards nobody has counted (hwdetect/described.py)"""
CPU_GIB = 1
"""of a process that prepares data, one for each CPU: an interpreter with torch, transformers and a part of the rows (PROCESS_GIB of cost/constants.py)"""
SERVED_GPU_GIB = 20
"""vLLM's own limit of a server on one GPU (https://docs.vllm.ai/en/stable/deployment/k8s/: "memory: 20G" of a 7B model)"""
GIVEN_OUT = 0.95
"""of a node's memory: its system, and what Slurm keeps for that (RealMemory, MemSpecLimit), have the rest (ours)"""
CUT_SECONDS = 5
"""after a server has cut what it was writing (serve.sbatch)"""


def describe_launch(
    plan: Plan,
    project: ProjectPart,
    edits: Edits,
    parallel: ParallelRecord | None,
    saving: SavingRecord | None,
    server: ServerRecord | None,
) -> LaunchRecord | None:
    """``None`` for what a person starts at a terminal: one process, or several of one CPU."""
    case, layout = plan.case, plan.best.layout
    common = {
        "name": name_object(project.name, project.mode),
        "nodes": layout.nodes,
        "per_node": layout.per_node,
        "environment": dict(edits.environment),
        "gpus": {case.vendor.kubernetes: layout.per_node} if case.vendor.kubernetes else {},
        "ports": count_ports(plan),
        "group_file": case.vendor.group_file,
        "memory_gib": round(plan.best.estimate.peak_memory_gib * layout.per_node, 1),
        "accelerator": case.device.id,
        "port": PORT if layout.nodes > 1 else None,
    }
    if server is not None and server.command:
        return LaunchRecord(
            script=SERVE,
            command=("python", "server.py", *SERVE[1:]),
            grace_seconds=server.grace_seconds + CUT_SECONDS,
            cpus=server.cpus_per_task,
            host_gib=choose_host_gib(plan, server.cpus_per_task, layout.per_node * SERVED_GPU_GIB),
            **common,
        )
    if parallel is None or saving is None or (case.on_cpu and layout.nodes == 1) or layout.devices == 1:
        return None
    return LaunchRecord(
        script=("./train.sh",),
        command=(*parallel.launcher, "train.py"),
        grace_seconds=saving.grace_seconds,
        cpus=parallel.cpus_per_task,
        host_gib=choose_host_gib(plan, parallel.cpus_per_task, (parallel.cpus_per_task or 0) * CPU_GIB),
        **common,
    )


def choose_host_gib(plan: Plan, cpus: int | None, least_gib: float) -> int:
    """What a job asks for of a node's memory, 0 for all of it: a cluster gives a job that names none so much for each CPU.

    What is predicted has room, and ``least_gib`` if that is more, within what the node was planned to have; where somebody read how
    much the node has, it is the share that the job's accelerators are, if that is more.
    """
    case, estimate, here = plan.case, plan.best.estimate, plan.best.layout.per_node
    of_node = len(case.hardware.accelerators)
    if cpus is None or here == of_node:
        return 0
    predicted = estimate.peak_memory_gib * here if case.on_cpu else sum(item.value for item in estimate.host_memory)
    most = math.inf if case.on_cpu or estimate.host_limit_gib is None else estimate.host_limit_gib
    roomy = max(math.ceil(predicted), int(min(max(predicted * SPARE, least_gib), most)))
    assumed = any(note.who == "spec" and note.field == "memory.total_bytes" for note in case.hardware.notes)
    total = None if case.on_cpu or assumed else case.hardware.memory.total_bytes
    return max(roomy, math.floor((total or 0) / 2**30 * GIVEN_OUT * here / max(of_node, here)))


def count_ports(plan: Plan) -> dict[str, int]:
    """EFA devices by their device plugin's name. RDMA ports have a name that each cluster chooses (pods.explain_fabric)."""
    if plan.best.layout.nodes == 1:
        return {}
    count = sum(port.kind == "efa" and port.name != WHOLE for port in plan.case.hardware.network)
    return {EFA: count} if count else {}


def list_launch_files(
    plan: Plan, project: ProjectPart, config: ConfigRecord, launch: LaunchRecord, saving: SavingRecord
) -> Iterator[tuple[str, str]]:
    """Name and content of the YAML files in launch/."""
    disks = Disks(model_gib=measure_files(plan), runs_gib=KEPT_CHECKPOINTS * saving.checkpoint_gib)
    if project.contained:
        yield "trainjob", dump_train_job(project, config, launch, disks)
        if launch.nodes > 1:
            yield "jobset", dump_job_set(project, config, launch, disks)
    task = dump_task(project, launch)
    if task is not None:
        yield "sky", task
