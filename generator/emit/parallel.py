"""What plan.json says of several processes: how they are started, what they must find, and their configuration files."""

from __future__ import annotations

from typing import Any

from generator.case.case import Case
from generator.case.layout import Layout
from generator.cost.links import best_choice
from generator.decide.plan import Plan
from generator.techniques.launch import is_by_accelerate, is_by_deepspeed

BACKEND = {"cuda": "nccl", "cpu": "gloo"}


def describe_processes(plan: Plan) -> dict | None:
    """``None`` where train.py is one process. ``expected`` is what parallel.py compares the prepared model with."""
    if not plan.edits.launcher:
        return None
    case, layout = plan.case, plan.best.layout
    return {
        "strategy": layout.strategy,
        "nodes": layout.nodes,
        "per_node": layout.per_node,
        "world_size": layout.devices,
        "cpus_per_task": case.hardware.cpu.budget,
        "launcher": list(plan.edits.launcher),
        "at_load": layout.at_load,
        "parameter_count_attribute": name_parameter_count(plan),
        "expected": expect_wrapping(case, layout, ("fsdp_config.fsdp_offload_params", True) in plan.edits.accelerate),
        "deepspeed": nest_keys(plan.edits.deepspeed),
        "accelerate": nest_keys(plan.edits.accelerate),
    }


def name_parameter_count(plan: Plan) -> str | None:
    """The attribute that holds the number of elements of a weight that is divided as it is loaded; ``None``: ``numel()`` does."""
    at_loading = plan.best.layout.strategy == "zero3" and plan.case.workload.train == "full"
    return "ds_numel" if at_loading else None


def expect_wrapping(case: Case, layout: Layout, offloaded: bool) -> dict[str, Any]:
    device = "cpu" if case.on_cpu else "cuda"
    common: dict[str, Any] = {"world_size": layout.devices, "backend": BACKEND[device], "device": device}
    if is_by_deepspeed(layout):
        stage = int(layout.strategy.removeprefix("zero"))
        return {"wrapper": "DeepSpeedEngine", "zero_stage": stage, "shards": layout.shard} | common
    if is_by_accelerate(layout) or layout.at_load:
        if offloaded:  # the shards rest in host memory, and their norm is summed there
            common |= {"backend": "cuda:nccl,cpu:gloo", "device": "cpu"}
        copies = layout.replicate > 1
        return {
            "wrapper": "FSDPModule",
            "sharded": "all",
            "mesh": [f"({layout.replicate}, {layout.shard})" if copies else f"({layout.shard},)"],
            "placements": ["(Replicate(), Shard(dim=0))" if copies else "(Shard(dim=0),)"],
        } | common
    return {"wrapper": "DistributedDataParallel"} | common


def nest_keys(settings: tuple[tuple[str, Any], ...]) -> dict:
    """{"a.b": 1} as {"a": {"b": 1}}, plain values first."""
    found: dict = {}
    for key, value in sorted(settings, key=lambda item: "." in item[0]):
        *path, last = key.split(".")
        place = found
        for name in path:
            place = place.setdefault(name, {})
        place[last] = value
    return found


def select_visible_devices(plan: Plan) -> str | None:
    """What CUDA_VISIBLE_DEVICES must be on the command line, or ``None`` where all devices, or the first of them, are used.

    A training in one process would spread over every GPU it sees (Trainer's DataParallel).
    """
    case, layout = plan.case, plan.best.layout
    if not case.accelerators:
        return None
    every = case.hardware.accelerators
    if any(a.profile is not None for a in every):  # a slice is chosen by its UUID, not by its number
        return None
    chosen = best_choice(case.device, case.links, case.devices_per_node, layout.per_node)
    used = [case.accelerators[place] for place in chosen]
    first = used == list(range(len(used)))
    if len(used) == len(every) or (first and len(used) > 1):
        return None
    return ",".join(map(str, used))
