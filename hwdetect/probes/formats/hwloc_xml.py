"""Exported topologies of hwloc, versions 1 to 3."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from hwdetect.machine.protocol import Machine
from hwdetect.pci_vendors import VENDORS_BY_PCI
from hwdetect.probes.notes import Notes
from hwdetect.probes.parsing import clean_line, parse_integer
from hwdetect.probes.partial import NOTHING, PartialHardware, list_board_accelerators
from hwdetect.types import Board, Cpu, Link, Memory, NetworkPort

FILE = "hwloc.xml"
# A display controller alone may be a server's console; a 3D controller or accelerator of these makers computes.
COMPUTE_CLASSES = ("0302", "1200", "0380")
COMPUTE_DEVICES = re.compile(r"(cuda|opencl|nvml|rsmi|ze|ve)\d", re.IGNORECASE)
SWITCH = re.compile(r"0680 \[10de:")  # NVSwitch: a bridge of no other class
PORT_CLASSES = ("0200", "0207")


def read_hwloc(machine: Machine, notes: Notes) -> PartialHardware:
    text = machine.read(FILE)
    if text is None:
        return NOTHING
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError) as error:
        notes.add("cpu", FILE, f"the document is broken: {error}")
        return NOTHING
    objects = list(root.iter("object"))
    kinds: dict[str, list[ElementTree.Element]] = {}
    for element in objects:
        kinds.setdefault(element.get("type", ""), []).append(element)
    boards, numbers = _list_boards(kinds.get("PCIDev", []))
    return PartialHardware(
        cpu=_build_cpu(kinds),
        memory=_build_memory(kinds),
        boards=boards,
        accelerators=list_board_accelerators(boards) if boards else None,
        links=_list_links(root, numbers),
        network=_list_ports(kinds.get("PCIDev", [])),
    )


def _list_infos(element: ElementTree.Element) -> dict[str, str]:
    return {info.get("name", ""): info.get("value", "") for info in element.findall("info")}


def _build_cpu(kinds: dict[str, list[ElementTree.Element]]) -> Cpu:
    # hwloc before 1.11 calls a package Socket.
    packages = kinds.get("Package", []) + kinds.get("Socket", [])
    infos = [_list_infos(element) for element in (*packages, *kinds.get("Machine", []))]
    model = next((info["CPUModel"] for info in infos if info.get("CPUModel")), None)
    arch = next((info["Architecture"] for info in infos if info.get("Architecture")), None)
    threads = len(kinds.get("PU", [])) or None
    # A node without CPUs (memory of a GPU) has an empty set, 0x0.
    nodes = [n for n in kinds.get("NUMANode", []) if re.search(r"[1-9a-f]", (n.get("cpuset") or "1").replace("0x", ""))]
    return Cpu(
        model_name=clean_line(model),
        vendor=next((info["CPUVendor"] for info in infos if info.get("CPUVendor")), None),
        architecture=arch,
        packages=len(packages) or None,
        cores=len(kinds.get("Core", [])) or None,
        cpus_online=threads,
        numa_nodes=len(nodes) or None,
    )


def _build_memory(kinds: dict[str, list[ElementTree.Element]]) -> Memory:
    """Sum over the nodes; version 1 has the memory of a machine without nodes at the machine."""
    nodes = kinds.get("NUMANode", [])
    sizes = [size for node in (nodes or kinds.get("Machine", [])) if (size := parse_integer(node.get("local_memory")))]
    return Memory(total_bytes=sum(sizes) or None, numa_nodes=len(nodes) or None)


def _list_boards(devices: list[ElementTree.Element]) -> tuple[tuple[Board, ...], dict[str, int]]:
    """PCI devices that compute, and the index of the board for each operating system device's number."""
    boards: list[Board] = []
    numbers: dict[str, int] = {}
    for element in devices:
        kind, vendor, device = _parse_pci_type(element)
        inside = [child for child in element.findall("object") if COMPUTE_DEVICES.match(child.get("name", ""))]
        computes = kind.startswith(COMPUTE_CLASSES) and vendor in VENDORS_BY_PCI
        if not inside and not computes:
            continue
        infos: dict[str, str] = {}
        for child in inside:
            infos = {**_list_infos(child), **infos}
            numbers[child.get("gp_index", "")] = len(boards)
        memory = re.fullmatch(r"(\d{1,15})\s*KiB", infos.get("CUDAGlobalMemorySize", ""))
        boards.append(
            Board(
                index=len(boards),
                vendor=VENDORS_BY_PCI.get(vendor, "unknown"),
                name=clean_line(infos.get("GPUModel")),
                uuid=infos.get("NVIDIAUUID"),
                pci_id=f"{vendor}:{device}",
                pci_address=element.get("pci_busid"),
                memory_bytes=int(memory.group(1)) * 1024 if memory else None,
                compute_units=parse_integer(infos.get("CUDAMultiProcessors")),
            )
        )
    return tuple(boards), numbers


def _parse_pci_type(element: ElementTree.Element) -> tuple[str, str, str]:
    """(class, vendor, device) of ``0302 [10de:1094] …``; version 1 writes ``0302 [10de:1094] …`` as well."""
    match = re.match(r"([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})\]", element.get("pci_type", ""))
    return (match.group(1), match.group(2), match.group(3)) if match else ("", "", "")


def _list_ports(devices: list[ElementTree.Element]) -> tuple[NetworkPort, ...]:
    ports = []
    for element in devices:
        kind, _, _ = _parse_pci_type(element)
        if not kind.startswith(PORT_CLASSES):
            continue
        names = [child.get("name", "") for child in element.findall("object")]
        rdma = next((name for name in names if re.match(r"mlx|hfi|bnxt_re|irdma", name)), None)
        name = rdma or next((name for name in names if name), None)
        if name:
            port_kind = "infiniband" if kind == "0207" else "roce" if rdma else "ethernet"
            ports.append(NetworkPort(name=name, kind=port_kind, pci_address=element.get("pci_busid")))
    return tuple(ports)


def _list_links(root: ElementTree.Element, numbers: dict[str, int]) -> tuple[Link, ...]:
    """The NVLinkBandwidth matrix (megabytes per second) between boards; the processors in it are left out.

    Boards below NVSwitches have no rate to each other in it, only to the switches: what two have to the same ones joins them.
    """
    switches = {
        element.get("gp_index", "")
        for element in root.iter("object")
        if element.get("type") == "PCIDev" and SWITCH.match(element.get("pci_type", ""))
    }
    links: dict[tuple[int, int], Link] = {}
    for matrix in (*root.iter("distances2hetero"), *root.iter("distances2")):
        if matrix.get("name") not in ("NVLinkBandwidth", "XGMIBandwidth", "XeLinkBandwidth"):
            continue
        kind = (
            {"N": "nvlink", "X": "xgmi"}[matrix.get("name", "N")[0]] if "Xe" not in matrix.get("name", "") else "xelink"
        )
        names = " ".join(part.text or "" for part in matrix.findall("indexes")).split()
        # One text of numbers, cut into several elements.
        values = [parse_integer(v) or 0 for v in " ".join(p.text or "" for p in matrix.findall("u64values")).split()]
        if len(values) != len(names) ** 2:
            continue
        boards = {i: numbers[gp] for i, name in enumerate(names) if (gp := name.removeprefix("OSDev:")) in numbers}
        middles = [i for i, name in enumerate(names) if name.startswith("PCIDev:") and name[7:] in switches]
        for i, a in boards.items():
            for j, b in boards.items():
                direct = values[i * len(names) + j]
                through = sum(min(values[i * len(names) + m], values[m * len(names) + j]) for m in middles)
                if a < b and (direct > 0 or through > 0):
                    links[a, b] = Link(
                        a=a, b=b, kind=kind if direct else "nvswitch", bandwidth_bytes_per_s=(direct or through) * 1e6
                    )
    return tuple(links[pair] for pair in sorted(links))
