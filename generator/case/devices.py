"""Which devices of a machine one job can use, and what they are to the cost model."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from generator.case import stacks
from generator.case.case import Case
from generator.case.vendors import CPU, Vendor, choose_vendor, find_vendor
from generator.case.workload import Workload
from generator.errors import UsageError
from generator.inputs.hardware import PORTABLE
from generator.model import ModelSpec
from hwdetect import catalog
from hwdetect.spec import parse_spec
from hwdetect.types import Accelerator, Board, Device, Hardware, Link, Pcie

PORTABLE_ESTIMATE = "cpu:4"


def make_case(hardware: Hardware, used: tuple[Accelerator, ...], spec: ModelSpec, workload: Workload) -> Case:
    """The work on ``used`` accelerators (none: the CPU), which build of torch they run, and what joins them."""
    device, memory_bytes = describe_accelerators(hardware, used) if used else describe_cpu(hardware)
    vendor = choose_vendor(device.vendor, device.kind if used else "cpu", workload.framework)
    if vendor is None:
        raise KeyError(device.vendor)
    role = choose_role(workload, vendor, spec)
    build = vendor.choose_build(role, device, hardware.software.driver)
    usable, total = share_memory(hardware, used, vendor, device, memory_bytes)
    return Case(
        hardware=hardware,
        device=device,
        device_memory_bytes=usable,
        shared_memory_bytes=total,
        model=spec,
        workload=workload,
        stack=stacks.load_stack(role, build, vendor.missing),
        devices_per_node=len(used) or count_cpu_processes(hardware),
        nodes=hardware.nodes.count if (used or workload.mode == "train") and not vendor.why_alone else 1,
        accelerators=tuple(a.index for a in used),
        links=select_links(hardware, used),
        network_bytes_per_s=find_network_rate(hardware),
    )


def is_mig_instance(accelerator: Accelerator, board: Board) -> bool:
    """By what a tool names it, or by what it has less than its board: nvidia-smi's log tells no names."""
    return bool(board.mig_enabled) and (accelerator.profile is not None or accelerator.gpu_instance is not None)


def count_cpu_processes(hardware: Hardware) -> int:
    """Those that a spec asks for (``4xcpu:1``): each has the cores and the memory of ``cpu`` and ``memory``."""
    return (hardware.nodes.processes or 1) if hardware.nodes.source == "spec" else 1


def group_equal_accelerators(hardware: Hardware) -> list[tuple[Accelerator, ...]]:
    """Accelerators that one job can use together: boards of one kind, whole, or equal parts of such (tiles of Intel's, partitions of AMD's);
    of MIG instances each is alone, as NCCL joins none. ``[()]``: the CPU.

    Raises ``UsageError`` where there are boards and perfgen cannot plan for any.
    """
    boards = {b.index: b for b in hardware.boards}
    groups: dict[tuple, list[Accelerator]] = {}
    for accelerator in hardware.accelerators:
        board = boards[accelerator.board]
        slice_of = (accelerator.index,) if is_mig_instance(accelerator, board) else (accelerator.compute_share,)
        if find_board_vendor(board):
            groups.setdefault((board.device or board.name, *slice_of), []).append(accelerator)
    if groups:
        return [tuple(group) for group in groups.values()]
    names = ", ".join(sorted({b.name or b.vendor for b in hardware.boards}))
    if hardware.accelerators:
        raise UsageError(
            f"{names}: no vendor's file of perfgen is for devices of {', '.join(sorted({b.vendor for b in hardware.boards}))}",
            "generator/case/vendors/ has one for each maker (CONTRIBUTING.md, Add a vendor); --hardware cpu plans for the CPU",
        )
    if hardware.boards:
        raise UsageError(
            f"no job can be given {names}: {explain_unusable_boards(hardware)}",
            "use --hardware cpu to plan for the CPU",
        )
    return [()]


def find_board_vendor(board: Board) -> Vendor | None:
    """Who plans for it: by its kind in the catalogue, or as a GPU."""
    return find_vendor(board.vendor, catalog.load(board.device).kind if board.device else "gpu")


def select_links(hardware: Hardware, used: tuple[Accelerator, ...]) -> tuple[Link, ...]:
    """The links of the node, its ends numbered by place among ``used``; parts of a board share what the board has."""
    places: dict[int, list[int]] = {}
    for number, accelerator in enumerate(used):
        places.setdefault(accelerator.board, []).append(number)
    between = [
        replace(x, a=a, b=b, bandwidth_bytes_per_s=_share_rate(x.bandwidth_bytes_per_s, places[x.a], places[x.b]))
        for x in hardware.links
        if x.a in places and x.b in places and x.a != x.b
        for a in places[x.a]
        for b in places[x.b]
    ]
    boards = {board.index: board for board in hardware.boards}
    within = [link for index, parts in places.items() for link in list_inner_links(boards[index], parts)]
    return (*between, *within)


def _share_rate(rate: float | None, *ends: list[int]) -> float | None:
    return rate / max(map(len, ends)) if rate else rate


def list_inner_links(board: Board, parts: list[int]) -> list[Link]:
    """Between the parts of one board: no slower than what leads out of it, of which each has its share."""
    device = catalog.load(board.device) if board.device and len(parts) > 1 else None
    if device is None or device.link_kind is None or board.mig_enabled:
        return []
    rate = _share_rate(device.link_bytes_per_s, parts)
    pairs = combinations(parts, 2)
    return [Link(a=a, b=b, kind=device.link_kind, bandwidth_bytes_per_s=rate, p2p=True) for a, b in pairs]


FABRICS = ("infiniband", "roce", "efa")


def find_network_rate(hardware: Hardware) -> float | None:
    """Bytes per second that a node's ports give together: those of its fabric, or else its fastest Ethernet port."""
    ports = [p for p in hardware.network if p.rate_bytes_per_s and p.state not in ("down", "DOWN")]
    fabric = [p.rate_bytes_per_s for p in ports if p.kind in FABRICS and p.rate_bytes_per_s]
    if fabric:
        return sum(fabric)
    return max((p.rate_bytes_per_s for p in ports if p.rate_bytes_per_s), default=None)


def make_portable_case(spec: ModelSpec, workload: Workload) -> Case:
    """No machine: the techniques that work everywhere, with the numbers of a small one."""
    small = parse_spec(PORTABLE_ESTIMATE)
    device, memory_bytes = describe_cpu(small)
    return Case(
        hardware=small,
        device=replace(device, id=PORTABLE, name="a 4-core CPU (assumed)"),
        device_memory_bytes=memory_bytes,
        model=spec,
        workload=workload,
        stack=stacks.load_stack(choose_role(workload, CPU, spec), "cpu"),
    )


def choose_role(workload: Workload, vendor: Vendor, spec: ModelSpec) -> str:
    """The environment of the project: a served model that writes has one of its engine's, which begins as that of Transformers."""
    if vendor.skeleton and vendor.skeleton.explain_work(workload, spec) is None:
        return vendor.skeleton.role
    if workload.by_row:
        return "rows"
    return "serve-transformers" if workload.serves else "train"


def describe_accelerators(hardware: Hardware, used: tuple[Accelerator, ...]) -> tuple[Device, int]:
    """What equal accelerators are, and the memory in bytes of the smallest of them."""
    board = next(b for b in hardware.boards if b.index == used[0].board)
    device = catalog.load(board.device) if board.device else assume_device(board)
    known = [a.memory_bytes for a in used if a.memory_bytes]
    if not known and board.mig_enabled:
        raise UsageError(
            f"the memory of the MIG instance {used[0].profile or used[0].index} of {board.name} could not be read",
            "give the instance by name, as --hardware h100:3g.40gb (`nvidia-smi -L` says which it is)",
        )
    memory_bytes = min(known, default=board.memory_bytes or device.memory_bytes)
    if memory_bytes is None:
        raise UsageError(
            f"the memory of {board.name} could not be read", "give the device by name: --hardware 1x<device>"
        )
    slot = min((b.pcie for b in hardware.boards if b.index in {a.board for a in used}), key=rank_slot)
    device = replace(
        device,
        pcie_generation=slot.generation_max or device.pcie_generation,
        pcie_width=slot.width or device.pcie_width,
    )
    share = used[0].compute_share
    if share is not None and share < 1.0:
        device = slice_device(device, share, memory_bytes)
    return device, memory_bytes


def rank_slot(slot: Pcie) -> float:
    """Its rate in lanes of the first generation, each of which has twice the last one's; last what could not be read."""
    return slot.width * 2.0**slot.generation_max if slot.width and slot.generation_max else float("inf")


def share_memory(
    hardware: Hardware, used: tuple[Accelerator, ...], vendor: Vendor, device: Device, memory_bytes: int
) -> tuple[int, int | None]:
    """What a process can have of a device's memory, and all of one that it shares with the host (``None`` where it has its own).

    A machine that was read says how much its host has; the catalogue knows the largest that is sold, and a tool what was set aside:
    the limit of macOS, which is all that a process gets, or an APU's VRAM, in whose place the driver lends it of the host's memory
    where that is more.
    """
    if not used:
        return vendor.reach_memory(device, memory_bytes), None
    board = next(b for b in hardware.boards if b.index == used[0].board)
    if not device.unified_memory:
        # of an instance nothing more is kept: 0 MiB are reserved of its 19,968, and PyTorch tells of all of them
        return memory_bytes if is_mig_instance(used[0], board) else vendor.reach_memory(device, memory_bytes), None
    if hardware.nodes.source == "spec":
        return vendor.share_memory(device, memory_bytes), memory_bytes
    listed = min((a.memory_bytes for a in used if a.memory_bytes), default=board.memory_bytes)
    if listed and not board.integrated:
        return listed, listed
    total = hardware.memory.total_bytes or listed or memory_bytes
    return max(vendor.share_memory(device, total), listed or 0), total


def describe_cpu(hardware: Hardware) -> tuple[Device, int]:
    usable = hardware.memory.usable_bytes
    if usable is None:
        raise UsageError("the memory of this machine could not be read", "give it: --hardware cpu:CORES,MEMORYgb")
    return catalog.describe_cpu(hardware.cpu, hardware.measured, usable), usable


def explain_unusable_boards(hardware: Hardware) -> str:
    return "; ".join(f"{note.field}: {note.why}" for note in hardware.notes) or "no usable instance or partition"


def assume_device(board: Board) -> Device:
    """A board that the catalogue does not have: rates of the nearest relative, marked assumed. Raises ``UsageError`` without any."""
    vendor = find_board_vendor(board)
    relatives = [d for d in catalog.list_devices() if find_vendor(d.vendor, d.kind) is vendor]
    if not relatives:
        raise UsageError(
            f"{board.name}: the catalogue has neither its rates nor those of a relative",
            "`perfgen devices` lists what it has, CONTRIBUTING.md says how a device is added",
        )
    if any(device.compute_capability for device in relatives):
        return assume_by_capability(board, [device for device in relatives if device.compute_capability])
    return assume_by_memory(board, relatives)


def assume_by_memory(board: Board, relatives: list[Device]) -> Device:
    """Like the relative of its architecture, if that could be read, whose memory is nearest."""
    vendor = find_board_vendor(board)

    def measure_distance(device: Device) -> tuple:
        targets = vendor.list_targets(device) if vendor else ()
        alike = board.architecture is not None and board.architecture in (*targets, device.architecture)
        return (not alike, abs((device.memory_bytes or 0) - (board.memory_bytes or 0)), device.id)

    nearest = min(relatives, key=measure_distance)
    return replace(
        nearest,
        id="unknown",
        name=board.name or f"unknown {nearest.vendor} device",
        memory_bytes=board.memory_bytes,
        basis="assumed",
        sources=(("*", f"assumed to run like {nearest.name}, of what is known the nearest in kind and memory"),),
    )


def assume_by_capability(board: Board, relatives: list[Device]) -> Device:
    """Like the nearest relative by compute capability.

    Its own capability stays: it decides kernels and dtypes. One that could not be read counts as the oldest.
    """
    # A board that shares the host's memory is slower in kind than one that has its own.
    alike = [d for d in relatives if d.unified_memory == bool(board.unified_memory)] or relatives
    wanted = parse_capability(board.compute_capability)
    newest = max(parse_capability(d.compute_capability) for d in alike)
    memory = board.memory_bytes or 0

    def measure_distance(device: Device) -> tuple:
        capability = parse_capability(device.compute_capability)
        # What is newer than everything known is like the newest generation, whatever its minor number.
        minor = 0 if wanted > newest else abs(capability[1] - wanted[1])
        return (capability > wanted, abs(capability[0] - wanted[0]), minor, abs((device.memory_bytes or 0) - memory))

    nearest = min(alike, key=measure_distance)
    like = f"assumed to run like {nearest.name} (compute capability {nearest.compute_capability})"
    if board.compute_capability is None:
        like = f"its compute capability could not be read: {like}, with the dtypes and kernels that every GPU has"
    elif wanted > newest:
        known = ".".join(map(str, newest))
        like = (
            f"compute capability {board.compute_capability} is newer than any that perfgen knows ({known}): {like}; "
            "look whether the pinned torch has kernels for it"
        )
    return replace(
        nearest,
        id="unknown",
        name=board.name or "unknown GPU",
        compute_capability=board.compute_capability,
        memory_bytes=board.memory_bytes,
        basis="assumed",
        sources=(("*", like),),
    )


def parse_capability(text: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in (text or "0.0").split("."))


def slice_device(device: Device, share: float, memory_bytes: int) -> Device:
    """A MIG instance: its share of the compute units, and of the bandwidth by its memory."""
    memory_share = memory_bytes / device.memory_bytes if device.memory_bytes else share
    return replace(
        device,
        name=f"{device.name} ({share:.0%} slice)",
        memory_bytes=memory_bytes,
        memory_bytes_per_s=device.memory_bytes_per_s * memory_share if device.memory_bytes_per_s else None,
        tiles=1,
        peak_flops=tuple((k, v * share) for k, v in device.peak_flops),
        vector_flops=tuple((k, v * share) for k, v in device.vector_flops),
        basis="derived",
    )
