"""sky.yaml: the training as a task of SkyPilot, which rents the nodes."""

from __future__ import annotations

from typing import Any

from generator.emit.plan_document import LaunchRecord, ProjectPart

ACCELERATORS = {
    "a10": "A10",
    "a10g": "A10G",
    "a100-sxm-40gb": "A100",
    "a100-sxm-80gb": "A100-80GB",
    "b200-sxm-180gb": "B200",
    "h100-sxm-80gb": "H100",
    "h200-sxm-141gb": "H200",
    "l4": "L4",
    "l40": "L40",
    "l40s": "L40S",
    "mi300x": "MI300X",
    "rtx-3090": "RTX3090",
    "rtx-4090": "RTX4090",
    "rtx-a6000": "RTXA6000",
    "t4": "T4",
    "v100-sxm-16gb": "V100",
    "v100-sxm-32gb": "V100-32GB",
}
"""SkyPilot's names, by device of perfgen's catalogue (https://docs.skypilot.co/en/latest/overview.html, `sky gpus list`)"""
ON_FABRIC = ("b200-sxm-180gb", "h100-sxm-80gb", "h200-sxm-141gb")
"""of which SkyPilot joins whole nodes by more than TCP in several clouds (0.14.1: clouds/nebius.py, gcp.py, aws.py)"""
WHOLE_NODE = 8
RENTED = (1, 2, 4, WHOLE_NODE, 16)
"""Devices of the machines that are rented out (hwdetect/instances.toml, `sky gpus list --all`)"""
MEET = 'export MASTER_ADDR="$(printf "%s\\n" "$SKYPILOT_NODE_IPS" | head -n 1)"'


def dump_task(project: ProjectPart, launch: LaunchRecord) -> str | None:
    """``None`` where SkyPilot has no name for the device, and for machines without one."""
    accelerator = ACCELERATORS.get(launch.accelerator)
    if accelerator is None:
        return None
    # every node must see what the others write there, and a machine that takes over must find it
    runs = f"/mnt/{launch.name}-runs"
    start = f"exec {' '.join(launch.script)} --output_dir {runs}"
    task: dict[str, Any] = {
        "name": launch.name,
        "num_nodes": launch.nodes,
        "resources": {"accelerators": {accelerator: count_rented(launch.per_node)}} | choose_network(launch),
        "workdir": ".",
        "volumes": {runs: f"{launch.name}-runs"},
        "secrets": {"HF_TOKEN": ""},
        "setup": "make setup",
        "run": Script(f"{MEET}\n{start}\n") if launch.port else start,
    }
    return explain_rented(launch) + dump_readable(task)


def explain_rented(launch: LaunchRecord) -> str:
    """A comment line where a machine has more devices than the plan uses."""
    rented, name = count_rented(launch.per_node), ACCELERATORS[launch.accelerator]
    if rented == launch.per_node:
        return ""
    return f"# The plan uses {launch.per_node} of the {rented} {name}: no machine with {launch.per_node} of them is rented out.\n"


def count_rented(per_node: int) -> int:
    """Devices of the smallest machine that has so many: train.sh starts its processes on the first ones."""
    return min((count for count in RENTED if count >= per_node), default=per_node)


def choose_network(launch: LaunchRecord) -> dict[str, str]:
    """Several nodes were priced with the fabric between them, and SkyPilot's default is plain TCP."""
    whole = launch.nodes > 1 and count_rented(launch.per_node) == WHOLE_NODE and launch.accelerator in ON_FABRIC
    return {"network_tier": "best"} if whole else {}


class Script(str):
    """Text of several lines that YAML shows as they are."""


def dump_readable(task: dict[str, Any]) -> str:
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    Dumper.add_representer(
        Script, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|")
    )
    return yaml.dump(task, Dumper=Dumper, sort_keys=False, width=1000, allow_unicode=True)
