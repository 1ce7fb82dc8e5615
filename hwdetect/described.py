"""``Hardware`` of machines that are described and not read: what is not said is assumed, and noted as assumed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hwdetect.cloud import Instance
from hwdetect.maker_tools import get_tool_of
from hwdetect.mig import Profile
from hwdetect.topology import assume_fabric, list_peer_links
from hwdetect.types import Accelerator, Board, Cpu, Device, Disk, Hardware, Memory, NetworkPort, Nodes, Note, Pcie

GIB = 2**30
ASSUMED_CPUS_PER_DEVICE = 16
ASSUMED_HOST_BYTES_PER_DEVICE_BYTE = 2
ASSUMED_CORES = 8
ASSUMED_GIB_PER_CORE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """One of a name of its own."""

    name: str
    cores: int
    memory_gib: int


GRACE = Processor(name="NVIDIA Grace", cores=72, memory_gib=480)
"""https://developer.nvidia.com/blog/nvidia-grace-hopper-superchip-architecture-in-depth/"""
VERA = Processor(name="NVIDIA Vera", cores=88, memory_gib=1536)
"""https://docs.nvidia.com/dccpu/vera-perf-tuning-guide/os-settings.html has the cores; up to so much memory, as NVIDIA's table of
Vera Rubin NVL72 is quoted"""
SUPERCHIPS = {"gh200": (GRACE, 1), "gb200": (GRACE, 2), "gb300": (GRACE, 2), "vr200": (VERA, 2)}
"""the processor, and how many devices have one together, by the first word of the device's id
(https://www.nvidia.com/en-us/data-center/gb200-nvl72/)"""

X86 = ("avx2", "avx512f")
ARM = ("asimd", "neon")
ARM_SVE = ("asimd", "bf16", "i8mm", "neon", "sve")


def describe_cpu_machine(
    architecture: str,
    features: tuple[str, ...] | None,
    *,
    cores: int | None,
    memory_bytes: int | None,
    nodes: int,
    processes: int = 1,
    model: str | None = None,
) -> Hardware:
    """A machine without accelerators; ``None`` is assumed. Of several ``processes`` each has these cores and this memory."""
    notes = []
    if cores is None:
        notes.append(_note_assumption("cpu.cores", f"{ASSUMED_CORES} cores"))
        cores = ASSUMED_CORES
    if memory_bytes is None:
        notes.append(_note_assumption("memory.total_bytes", f"{ASSUMED_GIB_PER_CORE} GiB a core"))
        memory_bytes = cores * ASSUMED_GIB_PER_CORE * GIB
    if features is None:
        notes.append(_note_assumption("cpu.isa_features", "AVX2 and AVX-512"))
        features = X86
    if nodes > 1:
        notes.append(_note_assumption("network", "100 Gbit/s Ethernet between the nodes"))
    return Hardware(
        cpu=_describe_cpu(cores, cores, architecture, features, model),
        memory=_describe_memory(memory_bytes),
        network=assume_fabric(None, 0) if nodes > 1 else (),
        nodes=Nodes(count=nodes, source="spec", processes=processes if processes > 1 else None),
        notes=tuple(notes),
    )


def describe_device_machine(
    device: Device, count: int, *, nodes: int, cpus: int | None, memory_bytes: int | None, bridged: bool
) -> Hardware:
    """A machine with ``count`` of a catalogue device; ``bridged``: optional bridges join them in pairs."""
    notes = [_note_assumption("software", "an up-to-date driver, and nothing else running on the devices")]
    processor, each = SUPERCHIPS.get(device.id.split("-")[0], (None, 1))
    if processor:
        packages = -(-count // each)
        why = f"{packages} x {processor.name}, each of {processor.cores} cores and {processor.memory_gib} GiB"
        notes.append(Note(field="host", who="spec", why=why))
        cpus, memory_bytes = cpus or processor.cores * packages, memory_bytes or processor.memory_gib * GIB * packages
    if cpus is None:
        notes.append(_note_assumption("cpu", f"{ASSUMED_CPUS_PER_DEVICE} CPUs a device"))
        cpus = ASSUMED_CPUS_PER_DEVICE * count
    if device.unified_memory:
        notes.append(Note(field="memory", who="spec", why="host and device share one memory"))
        # One memory: what the device has is what the host has.
        memory_bytes = memory_bytes or (device.memory_bytes or 0) * count
        device = replace(device, memory_bytes=memory_bytes // count)
    elif memory_bytes is None:
        notes.append(_note_assumption("memory.total_bytes", "twice the memory of the devices"))
        memory_bytes = ASSUMED_HOST_BYTES_PER_DEVICE_BYTE * (device.memory_bytes or 0) * count
    if nodes > 1:
        notes.append(_note_assumption("network", "the usual fabric between such nodes"))
    if device.tiles > 1:
        why = f"each {device.name} is {device.tiles} devices to its runtime, one a tile"
        notes.append(Note(field="accelerators", who="spec", why=why))
    architecture, features = assume_host_cpu(device)
    return Hardware(
        cpu=_describe_cpu(cpus, cpus, architecture, features, processor.name if processor else None),
        memory=_describe_memory(memory_bytes),
        boards=_list_boards(device, count),
        accelerators=_list_accelerators(device, count),
        links=list_peer_links(device, count, bridged=bridged),
        network=assume_fabric(device, count) if nodes > 1 else (),
        nodes=Nodes(count=nodes, source="spec"),
        notes=tuple(notes),
    )


def describe_mig_machine(
    device: Device, profile: Profile, label: str, count: int, *, nodes: int, cpus: int | None, memory_bytes: int | None
) -> Hardware:
    """A machine with ``count`` MIG instances, on as few boards as hold them; ``label`` is the profile with what follows it."""
    boards = -(-count // profile.most)
    machine = describe_device_machine(device, boards, nodes=nodes, cpus=cpus, memory_bytes=memory_bytes, bridged=False)
    assert device.compute_units is not None
    instance = Accelerator(
        index=0,
        board=0,
        name=f"{device.name} MIG {label}",
        memory_bytes=profile.memory_bytes,
        free_memory_bytes=profile.memory_bytes,
        profile=label,
        compute_share=profile.units / device.compute_units,
        compute_units=profile.units,
    )
    size = f"{profile.memory_bytes / GIB:.1f} GiB"
    text = (
        f"{label} of {device.id}: {profile.units} of {device.compute_units} multiprocessors, {size} ({profile.source})"
    )
    if profile.derived:
        text += "; its memory is derived from its share of the board's"
    return replace(
        machine,
        boards=tuple(replace(board, mig_enabled=True) for board in machine.boards),
        accelerators=tuple(replace(instance, index=i, board=i // profile.most) for i in range(count)),
        links=(),
        notes=(*machine.notes, Note(field="accelerators", who="spec", why=text)),
    )


def describe_instance(instance: Instance, device: Device | None, nodes: int) -> Hardware:
    """A cloud instance as its maker describes it; ``device`` is the catalogue entry of ``instance.device``."""
    disk = Disk(role="tmp", kind="nvme", total_bytes=instance.nvme_bytes, free_bytes=instance.nvme_bytes)
    return Hardware(
        cpu=_describe_cpu(instance.cores, instance.vcpus, instance.architecture, instance.isa_features, instance.cpu),
        memory=_describe_memory(instance.memory_bytes),
        boards=_list_boards(device, instance.devices) if device else (),
        accelerators=_list_accelerators(device, instance.devices) if device else (),
        links=list_peer_links(device, instance.devices, bridged=instance.bridged) if device else (),
        network=_list_ports(instance),
        disks=(disk,) if instance.nvme_bytes else (),
        nodes=Nodes(count=nodes, source="spec"),
        notes=(Note(field="*", who="spec", why=f"{instance.cloud} {instance.name}, not read: {instance.source}"),),
    )


def _list_ports(instance: Instance) -> tuple[NetworkPort, ...]:
    """Each EFA device where its maker counts them; else one port with the rate of all."""
    rate = instance.network_bytes_per_s
    if not rate:
        return ()
    names = [f"efa{number}" for number in range(instance.efa)] if instance.efa else ["network"]
    each = rate / len(names)
    return tuple(
        NetworkPort(name=name, kind=instance.network_kind, state="up", rate_bytes_per_s=each) for name in names
    )


def assume_host_cpu(device: Device) -> tuple[str, tuple[str, ...]]:
    """Architecture and instruction sets of the host that such a device usually sits in."""
    if get_tool_of(device.vendor).arm_host or device.id.startswith(("jetson", "gb10")):
        return "aarch64", ARM
    if device.id.split("-")[0] in SUPERCHIPS:
        return "aarch64", ARM_SVE
    return "x86_64", X86


def _describe_cpu(cores: int, cpus: int, architecture: str, features: tuple[str, ...], model: str | None = None) -> Cpu:
    return Cpu(
        model_name=model or f"{cores}-core {architecture} CPU",
        architecture=architecture,
        cores=cores,
        cpus_online=cpus,
        cpus_allowed=cpus,
        budget=cpus,
        isa_features=features,
    )


def _describe_memory(total_bytes: int) -> Memory:
    return Memory(total_bytes=total_bytes or None, available_bytes=total_bytes or None)


def _list_boards(device: Device, count: int) -> tuple[Board, ...]:
    pcie = Pcie(
        generation=device.pcie_generation,
        generation_max=device.pcie_generation,
        width=device.pcie_width,
        width_max=device.pcie_width,
    )
    return tuple(
        Board(
            index=index,
            vendor=device.vendor,
            name=device.name,
            device=device.id,
            pci_id=device.pci_ids[0] if device.pci_ids else None,
            memory_bytes=device.memory_bytes,
            compute_capability=device.compute_capability,
            unified_memory=device.unified_memory,
            power_limit_watts=device.tdp_watts,
            pcie=pcie,
        )
        for index in range(count)
    )


def _list_accelerators(device: Device, count: int) -> tuple[Accelerator, ...]:
    memory_bytes = device.memory_bytes // device.tiles if device.memory_bytes else None
    return tuple(
        Accelerator(
            index=index,
            board=index // device.tiles,
            name=device.name,
            memory_bytes=memory_bytes,
            free_memory_bytes=memory_bytes,
            profile=f"tile {index % device.tiles}" if device.tiles > 1 else None,
            compute_share=1.0 / device.tiles,
        )
        for index in range(count * device.tiles)
    )


def _note_assumption(field: str, what: str) -> Note:
    return Note(field=field, who="spec", why=f"not in the spec: assumed {what}")
