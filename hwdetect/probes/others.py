"""Accelerators that are named and counted, with what is known of them: TPU, Gaudi, Neuron, Ascend."""

from __future__ import annotations

import re

from hwdetect.machine.protocol import Machine
from hwdetect.probes import pci
from hwdetect.probes.notes import Notes, run_tool
from hwdetect.probes.parsing import get_mapping, get_text, parse_integer, parse_json, parse_number
from hwdetect.probes.partial import NOTHING, PartialHardware, list_board_accelerators
from hwdetect.types import Accelerator, Board, Nodes

SECONDS = 1.5
GIB = 1 << 30
ACCELERATOR_CLASSES = frozenset({0x1200, 0x0880, 0x0300, 0x0302, 0x0380, 0x1180})
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
NEURON = {
    "inf1": "AWS Inferentia",
    "inf2": "AWS Inferentia2",
    "trn1": "AWS Trainium",
    "trn2": "AWS Trainium2",
    "trn3": "AWS Trainium3",
}
# The platform names its own product: then the catalogue needs no other proof.
CATALOGUE = {
    **{f"TPU {version}": f"tpu-{version}" for version in ("v2", "v3", "v4", "v5e", "v5p", "v6e", "v7")},
    "AWS Inferentia": "inferentia",
    "AWS Inferentia2": "inferentia2",
    "AWS Trainium": "trainium",
    "AWS Trainium2": "trainium2",
    "AWS Trainium3": "trainium3",
}


def read_others(machine: Machine, notes: Notes) -> PartialHardware:
    """The first of the four kinds that is there (no machine mixes them)."""
    listed = pci.list_pci_devices(machine, ACCELERATOR_CLASSES)
    for reader in (_read_tpu, _read_gaudi, _read_neuron, _read_ascend):
        hardware = reader(machine, listed, notes)
        if hardware.boards or hardware.nodes:
            return hardware
    return NOTHING


def _read_tpu(machine: Machine, listed: tuple[pci.PciDevice, ...], notes: Notes) -> PartialHardware:
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


def _read_gaudi(machine: Machine, listed: tuple[pci.PciDevice, ...], notes: Notes) -> PartialHardware:
    """``hl-smi`` rows, else PCI devices of Habana (1da3) that carry the driver's accel nodes."""
    chips = [device for device in listed if device.vendor == 0x1DA3]
    if machine.live and not chips:
        return NOTHING
    query = ("hl-smi", "-Q", "index,uuid,name,memory.total,memory.used", "-f", "csv")
    rows = [
        line.split(",")
        for line in (run_tool(machine, query, SECONDS, notes, "boards") or "").splitlines()
        if line.count(",") == 4
    ]
    boards, accelerators = [], []
    for row in rows:
        index, uuid, name, total, used = (cell.strip() for cell in row)
        if not index.isdecimal():
            continue
        memory = _parse_mebibytes(total)
        boards.append(
            Board(index=len(boards), vendor="habana", name=name or None, uuid=uuid or None, memory_bytes=memory, state="ok",
                  pci_id=chips[len(boards)].pci_id if len(boards) < len(chips) else None)
        )  # fmt: skip
        taken = _parse_mebibytes(used)
        accelerators.append(
            Accelerator(index=len(accelerators), board=boards[-1].index, name=name or None, memory_bytes=memory,
                        free_memory_bytes=memory - taken if memory and taken is not None else None, compute_share=1.0)
        )  # fmt: skip
    if not boards:
        boards = [Board(index=i, vendor="habana", pci_id=d.pci_id, pci_address=d.address) for i, d in enumerate(chips)]
        return PartialHardware(boards=tuple(boards), accelerators=list_board_accelerators(tuple(boards)))
    return PartialHardware(boards=tuple(boards), accelerators=tuple(accelerators))


def _parse_mebibytes(text: str) -> int | None:
    size = parse_number(text)
    return int(size) << 20 if size else None


def _read_neuron(machine: Machine, listed: tuple[pci.PciDevice, ...], notes: Notes) -> PartialHardware:
    """``neuron-ls``: devices with their memory; what they are called stands in the instance's product name."""
    devices = [n for n in machine.list_folder("dev") if re.fullmatch(r"neuron\d+", n)]
    if machine.live and not devices:
        return NOTHING
    document = parse_json(run_tool(machine, ("neuron-ls", "--json-output"), SECONDS, notes, "boards"))
    # Since 2.20 the tool names the instance beside its list (`instance_type`); before it printed the list alone.
    named = get_text(get_mapping(document).get("instance_type")) or next(
        (
            text
            for entry in (document if isinstance(document, list) else [])
            if (text := get_text(get_mapping(entry).get("instance_type")))
        ),
        None,
    )
    entries = get_mapping(document).get("neuron_devices", get_mapping(document).get("mlas", document))
    listed_devices = [get_mapping(entry) for entry in entries] if isinstance(entries, list) else []
    product = (named or machine.read("sys/class/dmi/id/product_name") or "").split(".")[0].strip()
    name = NEURON.get(product[:4])
    boards = tuple(
        Board(
            index=i,
            vendor="aws",
            name=name,
            device=CATALOGUE.get(name or ""),
            pci_address=get_text(entry.get("bdf")),
            memory_bytes=parse_integer(get_text(entry.get("memory_size"))),
            compute_units=parse_integer(get_text(entry.get("nc_count"))),
            state="ok",
        )
        for i, entry in enumerate(listed_devices)
    ) or tuple(
        Board(index=i, vendor="aws", name=name, device=CATALOGUE.get(name or ""), state="ok")
        for i, _ in enumerate(devices)
    )
    return PartialHardware(boards=boards, accelerators=list_board_accelerators(boards))


# A row of ``npu-smi info`` names the card, the one below it a chip with its bus id and, last, its memory in use.
ASCEND_CARD = re.compile(r"^\|\s*\d{1,3}\s+(?:Ascend)?(\d{3}\w{0,8}(?:-\d{1,2})?)\s*\|", re.MULTILINE)
ASCEND_CHIP = re.compile(
    r"^\|\s*\d{1,3}(?:\s+\d{1,3})?\s*\|\s*([0-9A-Fa-f:.]{7,16})\s*\|.*?(\d{1,7})\s*/\s*(\d{1,7})\s*\|\s*$", re.MULTILINE
)


def _read_ascend(machine: Machine, listed: tuple[pci.PciDevice, ...], notes: Notes) -> PartialHardware:
    """``npu-smi info``: names, bus ids and memory; else the driver's device nodes, named only."""
    devices = [n for n in machine.list_folder("dev") if re.fullmatch(r"davinci\d+", n)]
    if machine.live and not devices:
        return NOTHING
    text = run_tool(machine, ("npu-smi", "info"), SECONDS, notes, "boards") or ""
    boards, accelerators = [], []
    names = [(match.start(), match.group(1)) for match in ASCEND_CARD.finditer(text)]
    for chip in ASCEND_CHIP.finditer(text):
        name = next((name for place, name in reversed(names) if place < chip.start()), None)
        if name is None:
            continue
        total, used = int(chip.group(3)) << 20, int(chip.group(2)) << 20
        index, title = len(boards), f"Ascend {name}"
        boards.append(Board(index=index, vendor="huawei", name=title, state="ok", memory_bytes=total or None,
                            pci_address=chip.group(1).lower()))  # fmt: skip
        accelerators.append(Accelerator(index=index, board=index, name=title, memory_bytes=total or None,
                                        free_memory_bytes=max(0, total - used) if total else None, compute_share=1.0))  # fmt: skip
    if boards:
        return PartialHardware(boards=tuple(boards), accelerators=tuple(accelerators))
    named = tuple(
        Board(index=i, vendor="huawei", name=f"Ascend {name}", state="ok") for i, (_, name) in enumerate(names)
    )
    named = named or tuple(Board(index=i, vendor="huawei", name="Ascend", state="ok") for i, _ in enumerate(devices))
    return PartialHardware(boards=named, accelerators=list_board_accelerators(named))
