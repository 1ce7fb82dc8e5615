"""Topology files of NCCL and RCCL (and NCCL's graph files, which only number the GPUs)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from xml.etree import ElementTree

from hwdetect.machine.protocol import Machine
from hwdetect.pci_vendors import VENDORS_BY_PCI
from hwdetect.probes.notes import Notes
from hwdetect.probes.parsing import parse_integer
from hwdetect.probes.partial import NOTHING, PartialHardware, list_board_accelerators
from hwdetect.probes.pci import parse_generation
from hwdetect.types import Board, Cpu, Link, NetworkPort, Pcie, PciPath

FILE = "nccl-topo.xml"
GPU_CLASSES = ("0x0302", "0x0380", "0x1200", "0x0300")
MAX_DEPTH = 64


@dataclass(slots=True)
class Place:
    """A device with the chain of bridges above it and its NUMA node."""

    element: ElementTree.Element
    above: tuple[str, ...]
    numa: int | None


@dataclass(slots=True)
class Walk:
    gpus: list[Place] = field(default_factory=list)
    ports: list[tuple[ElementTree.Element | None, Place]] = field(default_factory=list)
    nodes: list[ElementTree.Element] = field(default_factory=list)


def read_nccl_topo(machine: Machine, notes: Notes) -> PartialHardware:
    text = machine.read(FILE)
    if text is None:
        return NOTHING
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError) as error:
        notes.add("boards", FILE, f"the document is broken: {error}")
        return NOTHING
    if root.tag == "graphs":
        return _read_graph(root, notes)
    walk = Walk()
    _walk_tree(root, (), None, walk)
    gpus = sorted(walk.gpus, key=_get_order)
    boards = tuple(_build_board(i, place) for i, place in enumerate(gpus))
    ports = tuple(_build_port(i, net, place) for i, (net, place) in enumerate(walk.ports))
    cpu = walk.nodes[0] if walk.nodes else None
    return PartialHardware(
        boards=boards,
        accelerators=list_board_accelerators(boards),
        links=_list_links(gpus, boards, notes),
        network=ports,
        paths=tuple(
            PciPath(board=b.index, port=p.name, kind=kind)
            for b, gpu in zip(boards, gpus, strict=True)
            for p, (_, place) in zip(ports, walk.ports, strict=True)
            if (kind := _classify_distance(gpu, place))
        ),
        cpu=Cpu(
            architecture=cpu.get("arch") if cpu is not None else None,
            vendor=cpu.get("vendor") if cpu is not None else None,
            numa_nodes=len(walk.nodes) or None,
        ),
    )


def _read_graph(root: ElementTree.Element, notes: Notes) -> PartialHardware:
    numbers = sorted(
        {n for gpu in root.iter("gpu") if (n := parse_integer(gpu.get("dev"))) is not None and 0 <= n < 4096}
    )
    notes.add("boards", FILE, "a graph file: it numbers the GPUs and says nothing else of them")
    boards = tuple(Board(index=n, vendor="unknown") for n in numbers)
    return PartialHardware(boards=boards, accelerators=list_board_accelerators(boards))


def _walk_tree(element: ElementTree.Element, above: tuple[str, ...], numa: int | None, walk: Walk) -> None:
    if len(above) > MAX_DEPTH:
        return
    for child in element:
        if child.tag == "cpu":
            walk.nodes.append(child)
            _walk_tree(child, (*above, f"cpu{len(walk.nodes)}"), parse_integer(child.get("numaid")), walk)
        elif child.tag == "pci":
            _sort_device(child, above, numa, walk)
        elif child.tag == "nic":  # beside the PCI devices: a port whose place is not known
            for net in child.iter("net"):
                walk.ports.append((net, Place(child, above, numa)))


def _sort_device(element: ElementTree.Element, above: tuple[str, ...], numa: int | None, walk: Walk) -> None:
    kind = element.get("class", "")
    nets = [net for nic in element.findall("nic") for net in nic.findall("net")]
    if element.find("gpu") is not None or (kind.startswith(GPU_CLASSES) and element.find("pci") is None and not nets):
        walk.gpus.append(Place(element, above, numa))
    elif nets or (kind.startswith("0x02") and element.find("pci") is None):
        for net in nets or [None]:
            walk.ports.append((net, Place(element, above, numa)))
    else:
        _walk_tree(element, (*above, element.get("busid", "")), numa, walk)


def _get_order(place: Place) -> int:
    gpu = place.element.find("gpu")
    number = parse_integer(gpu.get("dev")) if gpu is not None else None
    return 0 if number is None else number  # static files name no number: document order (sort is stable)


def _build_board(index: int, place: Place) -> Board:
    element, gpu = place.element, place.element.find("gpu")
    vendor_id, device_id = element.get("vendor"), element.get("device")
    amd = (gpu is not None and gpu.get("gcn") is not None) or vendor_id == "0x1002"
    # NCCL's "sm" is the compute capability (90), RCCL's the number of compute units.
    units = parse_integer(gpu.get("sm")) if gpu is not None else None
    number = parse_integer(gpu.get("dev")) if gpu is not None else None
    return Board(
        index=index if number is None else number,
        vendor="amd" if amd else VENDORS_BY_PCI.get((vendor_id or "0x10de").removeprefix("0x"), "unknown"),
        name=format_gcn_name(gpu.get("gcn")) if gpu is not None else None,
        architecture=format_gcn_name(gpu.get("gcn")) if gpu is not None else None,
        pci_id=f"{vendor_id[2:]}:{device_id[2:]}" if vendor_id and device_id else None,
        pci_address=element.get("busid", "").lower() or None,
        compute_capability=f"{units // 10}.{units % 10}" if units and not amd else None,
        compute_units=units if amd else None,
        numa_node=place.numa,
        pcie=Pcie(
            generation=parse_generation(element.get("link_speed")),
            width=parse_integer(element.get("link_width")) or None,
        ),
    )


def format_gcn_name(code: str | None) -> str | None:
    """``gfx90a`` of RCCL's 910 (major, minor, stepping as one decimal number), or of a plain name."""
    if code is None or code.startswith("gfx"):
        return code
    if not re.fullmatch(r"\d{3,5}", code):
        return None
    number = int(code)
    return f"gfx{number // 100}{'0a' if number % 100 == 10 and number < 1000 else f'{number % 100:02d}'}"


def _build_port(index: int, net: ElementTree.Element | None, place: Place) -> NetworkPort:
    kind, vendor = place.element.get("class", ""), place.element.get("vendor")
    megabits = parse_integer(net.get("speed")) if net is not None else None
    name = net.get("name") if net is not None else None
    infiniband = kind.startswith("0x0207")
    rdma = re.match(r"mlx|bnxt|irdma|ib", name or "") is not None
    return NetworkPort(
        name=name or place.element.get("busid") or f"net{index}",
        kind="efa" if vendor == "0x1d0f" else "infiniband" if infiniband else "roce" if rdma and kind else "ethernet",
        rate_bytes_per_s=megabits * 1e6 / 8 if megabits and megabits > 0 else None,
        numa_node=place.numa,
        pci_address=place.element.get("busid"),
    )


def _list_links(gpus: list[Place], boards: tuple[Board, ...], notes: Notes) -> tuple[Link, ...]:
    """Direct links (XGMI, NVLink), each pair once; what leads to the device itself is no link."""
    by_address = {b.pci_address: b.index for b in boards if b.pci_address}
    counts: dict[tuple[int, int, str], int] = {}
    to_themselves = 0
    for place, board in zip(gpus, boards, strict=True):
        gpu = place.element.find("gpu")
        for link in gpu if gpu is not None else ():
            other = by_address.get((link.get("target") or "").lower())
            if link.tag not in ("xgmi", "nvlink") or other is None:
                continue
            if other == board.index:
                to_themselves += 1
                continue
            key = (min(board.index, other), max(board.index, other), link.tag)
            # Both ends list a link; a file made on a partly broken machine may have one of them only.
            counts[key] = max(counts.get(key, 0), parse_integer(link.get("count")) or 0)
    if to_themselves:
        notes.add("links", FILE, f"{to_themselves} GPUs list links to themselves: not counted")
    return tuple(Link(a=a, b=b, kind=kind, count=n or None) for (a, b, kind), n in sorted(counts.items()))


def _classify_distance(gpu: Place, port: Place) -> str | None:
    """pix below one switch, pxb below several, phb at one CPU, sys across."""
    if not gpu.above or not port.above or port.element.tag == "nic":
        return None
    if gpu.above[0] != port.above[0]:
        return "sys"
    common = 0
    while common < min(len(gpu.above), len(port.above)) and gpu.above[common] == port.above[common]:
        common += 1
    if common == 1:
        return "phb"
    # Below one switch at most its downstream bridge differs.
    return "pix" if max(len(gpu.above), len(port.above)) - common <= 1 else "pxb"
