"""TPUs: by PCI id, by the tables of ``tpu-info``, or by what the environment of a Cloud TPU machine says."""

from __future__ import annotations

import re

from hwdetect.machine.protocol import Machine
from hwdetect.probes import pci
from hwdetect.probes.notes import Notes, note_no_board, run_tool
from hwdetect.probes.partial import NOTHING, PartialHardware, list_board_accelerators
from hwdetect.types import Accelerator, Board, Nodes

SECONDS = 1.5
GIB = 1 << 30
# PCI ids of Google's chips: https://github.com/google/cloud-accelerator-diagnostics tpu_info/device.py
# Versions 2 and 3 have one id; the subsystem's tells them apart.
TPU_SUBSYSTEMS = {"004e": "TPU v2", "004f": "TPU v3"}
TPU_CHIPS = {
    "1ae0:0027": "TPU v3",
    "1ae0:005e": "TPU v4",
    "1ae0:0062": "TPU v5p",
    "1ae0:0063": "TPU v5e",
    "1ae0:006f": "TPU v6e",
    "1ae0:0076": "TPU v7",
}
# The number in a type counts TensorCores up to v4 and v5p (two a chip), chips from v5e on: https://cloud.google.com/tpu/docs/v4
TPU_TYPES = {"v2": ("TPU v2", 2), "v3": ("TPU v3", 2), "v4": ("TPU v4", 2), "v5p": ("TPU v5p", 2),
             "v5litepod": ("TPU v5e", 1), "v5e": ("TPU v5e", 1), "v6e": ("TPU v6e", 1), "tpu7x": ("TPU v7", 2),
             "v7x": ("TPU v7", 2)}  # fmt: skip
# The platform names its own product: then the catalogue needs no other proof.
CATALOGUE = {f"TPU {version}": f"tpu-{version}" for version in ("v2", "v3", "v4", "v5e", "v5p", "v6e", "v7")}


def read_tpu(machine: Machine, listed: tuple[pci.PciDevice, ...], notes: Notes) -> PartialHardware:
    """By PCI id; on Cloud TPU machines without the devices by what the environment says of the slice."""
    chips = [device for device in listed if device.pci_id in TPU_CHIPS]
    boards = tuple(_build_chip(machine, i, device, notes) for i, device in enumerate(chips))
    by_tool = (
        _read_tpu_info(machine, notes) if not boards and (not machine.live or not pci.is_readable(machine)) else NOTHING
    )
    if by_tool.boards:
        return by_tool
    kind = machine.get_variable("TPU_ACCELERATOR_TYPE") or machine.get_variable("ACCELERATOR_TYPE")
    match = re.fullmatch(r"(v\d[a-z]*|tpu7x)-(\d{1,5})", kind or "")
    if match is None or match.group(1) not in TPU_TYPES:
        return PartialHardware(boards=boards, accelerators=list_board_accelerators(boards))
    name, cores_per_chip = TPU_TYPES[match.group(1)]
    total = max(1, int(match.group(2)) // cores_per_chip)
    bounds = re.fullmatch(r"(\d{1,2}),(\d{1,2}),(\d{1,2})", machine.get_variable("TPU_CHIPS_PER_HOST_BOUNDS") or "")
    here = len(boards) or (_multiply_bounds(bounds) if bounds else None)
    if not boards:
        devices = [n for n in machine.list_folder("dev") if re.fullmatch(r"accel\d+", n)]
        # Hosts of up to v4 and v5p carry four chips, of v5e and v6e eight.
        here = len(devices) or here or min(total, 4 if cores_per_chip == 2 else 8)
        notes.add(
            "boards", "environment", f"no TPU device here; {kind} means {total} chips, {here} counted on this host"
        )
        state = "ok" if devices else "not-attached"
        boards = tuple(
            Board(index=i, vendor="google", name=name, device=CATALOGUE[name], state=state) for i in range(here)
        )
    workers = max(1, -(-total // here)) if here else 1  # hosts of the slice, rounded up
    return PartialHardware(
        boards=boards,
        accelerators=list_board_accelerators(boards),
        nodes=Nodes(count=workers, source="tpu") if workers > 1 else None,
    )


def _build_chip(machine: Machine, index: int, device: pci.PciDevice, notes: Notes) -> Board:
    name: str | None = TPU_CHIPS[device.pci_id]
    if name == "TPU v3":
        subsystem = (machine.read(f"{pci.DEVICES}/{device.address}/subsystem_device") or "").strip().removeprefix("0x")
        name = TPU_SUBSYSTEMS.get(subsystem)
        if name is None:
            why = f"subsystem {subsystem or 'not readable'}: versions 2 and 3 have one id; the nearest is TPU v2"
            notes.add(f"boards.{index}.device", "pci", why)
    return Board(
        index=index,
        vendor="google",
        name=name or "TPU",
        device=CATALOGUE[name] if name else None,
        pci_id=device.pci_id,
        pci_address=device.address,
        state="ok",
        numa_node=pci.read_numa_node(machine, device.address),
    )


TPU_CHIP = re.compile(r"/dev/(?:accel|vfio/)\d+\W+TPU ?(v?\d\w{0,3}?) chip\W+(\d)\W", re.ASCII)
TPU_USE = re.compile(r"^\W*(\d{1,3})\W+(\d{1,4}\.\d{2}) GiB / (\d{1,4}\.\d{2}) GiB", re.MULTILINE | re.ASCII)


def _read_tpu_info(machine: Machine, notes: Notes) -> PartialHardware:
    """The tables of ``tpu-info``: chips with their kind, and the memory of each device that a process uses.

    Devices are numbered as the runtime numbers cores, with gaps where a host holds parts of two slices: in their order they belong
    to the chips in theirs.
    """
    text = run_tool(machine, ("tpu-info",), SECONDS, notes, "boards") or ""
    chips = [(match.group(1), int(match.group(2)) or 1) for match in TPU_CHIP.finditer(text)]
    if not chips:
        note_no_board(notes, "tpu-info", text)
    use = [(float(m.group(2)), float(m.group(3))) for m in TPU_USE.finditer(text)]
    complete = len(use) == sum(devices for _, devices in chips)
    boards, accelerators, first = [], [], 0
    for index, (version, devices) in enumerate(chips):
        own = use[first : first + devices] if complete else []
        first += devices
        total = int(sum(size for _, size in own) * GIB) or None
        free = int(sum(size - used for used, size in own) * GIB) if own else None
        name = "TPU v7" if version.startswith("7") else f"TPU {version}"
        boards.append(
            Board(index=index, vendor="google", name=name, device=CATALOGUE.get(name), state="ok", memory_bytes=total)
        )
        accelerators.append(Accelerator(index=index, board=index, name=name, memory_bytes=total, free_memory_bytes=free,
                                        compute_share=1.0))  # fmt: skip
    return PartialHardware(boards=tuple(boards), accelerators=tuple(accelerators))


def _multiply_bounds(bounds: re.Match[str]) -> int:
    return int(bounds.group(1)) * int(bounds.group(2)) * int(bounds.group(3))
