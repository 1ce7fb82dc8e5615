from collections.abc import Mapping
from typing import Any, ClassVar

from generator.case.case import Case
from generator.case.layout import Layout
from generator.techniques.base import Published, Technique
from generator.techniques.edits import Edits, make_argument, write_literal
from generator.techniques.traits import Trait

WEIGHTS_SHARE = 0.8
"""Of a device's memory, less what answers keep there; and of the host's (ours): the rest is for activations, the layer that comes over,
and the system."""
GIB = 1 << 30


class DeviceMapOffload(Technique):
    """device_map="auto" with max_memory: layers that the devices have no room for stay with the host, those that it has not on its disk.

    What it does: serves what fits nowhere else; each such layer comes over when it is used, in every pass.
    When it loses: against everything that fits: a token takes as long as the weights take over the link, or off the disk.
    Known problems: its hooks run between the layers, so that nothing is compiled; a 4-bit or 8-bit model of bitsandbytes cannot be
    divided so.
    """

    axis = "parallelism"
    name = "device-map-offload"
    modes = ("infer",)
    last_resort = 2
    adds = 2
    request_only = "every token waits for the weights that the device has no room for"
    provides = frozenset({Trait.TRANSFORMERS_MODEL})
    excludes: ClassVar = {
        Trait.COMPILED_GRAPH: "the hooks that bring weights over break the compiled graph",
        Trait.UNCOMPILEABLE_LAYERS: "bitsandbytes' packed weights cannot leave the device",
    }
    evidence = (
        Published(
            "https://huggingface.co/docs/accelerate/en/concept_guides/big_model_inference",
            "what no device has room for is kept in the host's memory, and then on disk; it comes over for each forward pass",
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        if case.portable:
            return "the machine is not known"
        if case.nodes > 1:
            return "one process fills the devices of its own node, and its host"
        if not case.on_cpu and case.device.unified_memory:
            return f"{case.device.name} and its host share one memory: nothing would leave it"
        if not case.on_cpu and not case.hardware.memory.usable_bytes:
            return "the host's memory could not be read"
        return self.explain_disk(case)

    def explain_disk(self, case: Case) -> str | None:
        """Why what host and device have no room for finds none on a disk, or ``None``. Weights that are cast are written anew."""
        needed = 4 * case.model.params / GIB - count_devices(case) * find_device_gib(case) - find_host_gib(case)
        free = [
            disk.free_bytes / GIB for disk in case.hardware.disks if disk.role == "work" and disk.free_bytes is not None
        ]
        if needed > 0 and free and max(free) < needed:
            return f"up to {needed:,.0f} GiB of weights would go to the disk, which has {max(free):,.0f} GiB free"
        return None

    def layouts(self, case: Case) -> tuple[Layout, ...]:
        """All devices of the node: what each holds need not come over."""
        count = count_devices(case)
        return (Layout(per_node=count, pp=count),)

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {
            "offload_params": "cpu",
            "resident_gib": find_device_gib(case),
            "host_weights_gib": find_host_gib(case),
        }

    def edits(self, case: Case) -> Edits:
        device, host = int(find_device_gib(case) * 1024), int(find_host_gib(case) * 1024)
        devices = dict.fromkeys(range(count_devices(case)), f"{device}MiB")
        most = {"cpu": f"{device}MiB"} if case.on_cpu else {**devices, "cpu": f"{host}MiB"}
        return Edits(
            infer_imports=("from room import check_room",),
            infer_setup=(f"check_room(source, {write_literal(most)})",),
            infer_model_arguments=(
                make_argument(
                    "device_map", "auto", "layers fill the memory that max_memory gives them, and then the disk"
                ),
                make_argument("max_memory", most),
                make_argument("offload_folder", "offloaded"),
            ),
            fragments=("room",),
        )


def count_devices(case: Case) -> int:
    return min(case.devices_per_node, case.model.layers)


def find_device_gib(case: Case) -> float:
    """Of each device, for weights: beside what answers keep, of all requests at once, in the format that weights have most often."""
    workload = case.workload
    kept = (
        case.model.held_bytes_per_token * (workload.seq_len + workload.new_tokens) * max(1, workload.concurrency) / GIB
    )
    kept /= count_devices(case)
    return max(0.25, WEIGHTS_SHARE * case.device_memory_bytes / GIB - kept - (2.0 if not case.on_cpu else 1.0))


def find_host_gib(case: Case) -> float:
    return 0.0 if case.on_cpu else WEIGHTS_SHARE * (case.hardware.memory.usable_bytes or 0) / GIB
