"""Accelerators that are named and counted, with what is known of them: TPU, Gaudi, Neuron, Ascend."""

from __future__ import annotations

import re

from hwdetect.machine import Machine
from hwdetect.probes import pci
from hwdetect.probes.found import NOTHING, Found, whole_boards
from hwdetect.probes.reading import Notes, json_of, mapping, number, text_of, whole
from hwdetect.types import Accelerator, Board, Nodes

SECONDS = 1.5
ACCELERATOR_CLASSES = frozenset({0x1200, 0x0880, 0x0300, 0x0302, 0x0380, 0x1180})
# PCI ids of Google's chips: https://github.com/google/cloud-accelerator-diagnostics tpu_info/device.py
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
             "v5litepod": ("TPU v5e", 1), "v5e": ("TPU v5e", 1), "v6e": ("TPU v6e", 1)}  # fmt: skip
NEURON = {"inf1": "AWS Inferentia", "inf2": "AWS Inferentia2", "trn1": "AWS Trainium", "trn2": "AWS Trainium2"}


def read_others(machine: Machine, notes: Notes) -> Found:
    """The first of the four kinds that is there (no machine mixes them)."""
    listed = pci.pci_devices(machine, ACCELERATOR_CLASSES)
    for reader in (_tpu, _gaudi, _neuron, _ascend):
        found = reader(machine, listed, notes)
        if found.boards or found.nodes:
            return found
    return NOTHING


def _tpu(machine: Machine, listed: tuple[pci.PciDevice, ...], notes: Notes) -> Found:
    """By PCI id; on Cloud TPU machines without the devices by what the environment says of the slice."""
    chips = [device for device in listed if device.pci_id in TPU_CHIPS]
    boards = tuple(
        Board(index=i, vendor="google", name=TPU_CHIPS[d.pci_id], pci_id=d.pci_id, pci_address=d.address, state="ok",
              numa_node=pci.numa_node(machine, d.address)) for i, d in enumerate(chips)
    )  # fmt: skip
    kind = machine.environment("TPU_ACCELERATOR_TYPE") or machine.environment("ACCELERATOR_TYPE")
    match = re.fullmatch(r"(v\d[a-z]*)-(\d{1,5})", kind or "")
    if match is None or match.group(1) not in TPU_TYPES:
        return Found(boards=boards, accelerators=whole_boards(boards))
    name, cores_per_chip = TPU_TYPES[match.group(1)]
    total = max(1, int(match.group(2)) // cores_per_chip)
    bounds = re.fullmatch(r"(\d{1,2}),(\d{1,2}),(\d{1,2})", machine.environment("TPU_CHIPS_PER_HOST_BOUNDS") or "")
    here = len(boards) or (_product(bounds) if bounds else None)
    if not boards:
        devices = [n for n in machine.listing("dev") if re.fullmatch(r"accel\d+", n)]
        here = len(devices) or here or min(total, 4 if cores_per_chip == 2 else 8)
        notes.add(
            "boards", "environment", f"no TPU device here; {kind} means {total} chips, {here} counted on this host"
        )
        state = "ok" if devices else "not-attached"
        boards = tuple(Board(index=i, vendor="google", name=name, state=state) for i in range(here))
    workers = max(1, -(-total // here)) if here else 1
    return Found(
        boards=boards,
        accelerators=whole_boards(boards),
        nodes=Nodes(count=workers, source="tpu") if workers > 1 else None,
    )


def _product(bounds: re.Match[str]) -> int:
    return int(bounds.group(1)) * int(bounds.group(2)) * int(bounds.group(3))


def _gaudi(machine: Machine, listed: tuple[pci.PciDevice, ...], notes: Notes) -> Found:
    """``hl-smi`` rows, else PCI devices of Habana (1da3) that carry the driver's accel nodes."""
    chips = [device for device in listed if device.vendor == 0x1DA3]
    if machine.live and not chips:
        return NOTHING
    query = ("hl-smi", "-Q", "index,uuid,name,memory.total,memory.used", "-f", "csv")
    rows = [line.split(",") for line in (machine.run(query, SECONDS).text or "").splitlines() if line.count(",") == 4]
    boards, accelerators = [], []
    for row in rows:
        index, uuid, name, total, used = (cell.strip() for cell in row)
        if not index.isdecimal():
            continue
        memory = _mib(total)
        boards.append(
            Board(index=len(boards), vendor="habana", name=name or None, uuid=uuid or None, memory_bytes=memory, state="ok",
                  pci_id=chips[len(boards)].pci_id if len(boards) < len(chips) else None)
        )  # fmt: skip
        taken = _mib(used)
        accelerators.append(
            Accelerator(index=len(accelerators), board=boards[-1].index, name=name or None, memory_bytes=memory,
                        free_memory_bytes=memory - taken if memory and taken is not None else None, compute_share=1.0)
        )  # fmt: skip
    if not boards:
        boards = [Board(index=i, vendor="habana", pci_id=d.pci_id, pci_address=d.address) for i, d in enumerate(chips)]
        return Found(boards=tuple(boards), accelerators=whole_boards(tuple(boards)))
    return Found(boards=tuple(boards), accelerators=tuple(accelerators))


def _mib(text: str) -> int | None:
    size = number(text)
    return int(size) << 20 if size else None


def _neuron(machine: Machine, listed: tuple[pci.PciDevice, ...], notes: Notes) -> Found:
    """``neuron-ls``: devices with their memory; what they are called stands in the instance's product name."""
    devices = [n for n in machine.listing("dev") if re.fullmatch(r"neuron\d+", n)]
    if machine.live and not devices:
        return NOTHING
    document = json_of(machine.run(("neuron-ls", "--json-output"), SECONDS).text)
    listed_devices = [mapping(entry) for entry in document] if isinstance(document, list) else []
    product = (machine.read("sys/class/dmi/id/product_name") or "").split(".")[0].strip()
    name = NEURON.get(product[:4])
    boards = tuple(
        Board(
            index=i,
            vendor="aws",
            name=name,
            pci_address=text_of(entry.get("bdf")),
            memory_bytes=whole(text_of(entry.get("memory_size"))),
            compute_units=whole(text_of(entry.get("nc_count"))),
            state="ok",
        )
        for i, entry in enumerate(listed_devices)
    ) or tuple(Board(index=i, vendor="aws", name=name, state="ok") for i, _ in enumerate(devices))
    return Found(boards=boards, accelerators=whole_boards(boards))


def _ascend(machine: Machine, listed: tuple[pci.PciDevice, ...], notes: Notes) -> Found:
    """``npu-smi info`` rows, else the driver's device nodes: named only."""
    devices = [n for n in machine.listing("dev") if re.fullmatch(r"davinci\d+", n)]
    if machine.live and not devices:
        return NOTHING
    text = machine.run(("npu-smi", "info"), SECONDS).text or ""
    names = re.findall(r"^\|\s*\d{1,3}\s+(\d{3}\w{0,6})\s*\|", text, re.MULTILINE)
    boards = tuple(
        Board(index=i, vendor="huawei", name=f"Ascend {name}", state="ok") for i, name in enumerate(names)
    ) or tuple(Board(index=i, vendor="huawei", name="Ascend", state="ok") for i, _ in enumerate(devices))
    return Found(boards=boards, accelerators=whole_boards(boards))
