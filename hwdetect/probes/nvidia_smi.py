"""NVIDIA boards from what nvidia-smi prints: its XML, else its indented text, completed by its lists and tables."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace

from hwdetect.machine import Machine
from hwdetect.probes.found import NOTHING, Found, numbered, usable
from hwdetect.probes.nvidia_topo import read_nvlink, read_topo
from hwdetect.probes.reading import Notes, number, squeeze, whole
from hwdetect.probes.tree import Node, from_indented, from_xml
from hwdetect.types import Accelerator, Board, Pcie, Software

WHO = "nvidia-smi"
SECONDS = 2.0
QUERY = (
    "nvidia-smi",
    "--query-gpu=index,name,uuid,pci.bus_id,pci.device_id,compute_cap,memory.total,memory.free",
    "--format=csv",
)
NO_DEDICATED_MEMORY = re.compile(r"\b(GB10|Orin|Thor|Xavier|Tegra|nvgpu)\b", re.IGNORECASE)
MIB = 1 << 20


def read_nvidia_smi(machine: Machine, notes: Notes) -> Found:
    """Everything nvidia-smi can say; ``NOTHING`` with a note where it is not there or says nothing."""
    root, text = _log(machine, notes)
    if text is None:
        return NOTHING
    lost = _lost_boards(text)
    if root is None or not root.every("gpu"):
        rows = _query_rows(machine)
        if not rows and not lost:
            return NOTHING
        boards = tuple(_board_of_row(i, row) for i, row in enumerate(rows))
        return Found(boards=_with_lost(boards, lost), accelerators=None)
    boards, instances, free = [], [], []
    for index, gpu in enumerate(root.every("gpu")):
        board = _board(index, gpu)
        boards.append(board)
        instances.append(_instances(board, gpu))
        free.append(_mib(gpu.at("fb_memory_usage/free")))
    found = tuple(_completed(machine, boards))
    topo = read_topo(machine, len(found), notes)
    found = tuple(
        replace(
            board,
            numa_node=board.numa_node if board.numa_node is not None else topo.numa_nodes.get(board.index),
            cpu_affinity=board.cpu_affinity or topo.affinities.get(board.index),
        )
        for board in found
    )
    found = read_nvlink(machine, found, notes)
    attached = whole(root.at("attached_gpus"))
    if attached is not None and attached > len(found):
        notes.add("boards", WHO, f"the log says {attached} attached GPUs and describes {len(found)}")
    return Found(
        boards=_with_lost(found, lost),
        accelerators=_accelerators(machine, found, instances, free, notes),
        links=topo.links,
        paths=topo.paths,
        software=Software(
            driver=root.at("driver_version", "kmd_version"),
            cuda_driver=_version(root.at("cuda_version", "cuda_umd_version", "cuda_driver_version")),
        ),
    )


def _log(machine: Machine, notes: Notes) -> tuple[Node | None, str | None]:
    """The log as a tree, and the raw text (which may begin with lines about lost boards); no text where it hangs."""
    for argv, parse in ((("nvidia-smi", "-q", "-x"), from_xml), (("nvidia-smi", "-q"), from_indented)):
        output = machine.run(argv, SECONDS)
        if output.problem and output.problem not in ("not installed", "not in the recording"):
            notes.add("boards", " ".join(argv), output.problem)
            if output.problem.startswith("no answer"):
                return None, None  # the other forms would hang as well
        if output.text:
            parsed = parse(output.text)
            root, problem = parsed if isinstance(parsed, tuple) else (parsed, None)
            if problem:
                notes.add("boards", " ".join(argv), problem)
            if root is not None and root.every("gpu"):
                return root, output.text
            first = squeeze(output.text.strip().split("\n")[0])
            notes.add("boards", " ".join(argv), f"no GPU in its answer: {first}")
            if _lost_boards(output.text):
                return root, output.text
    return None, ""


def _known(text: str | None) -> str | None:
    """A reading, or ``None`` for the many ways of saying that there is none."""
    value = squeeze(text)
    if value is None or re.match(r"\[?(n/a|not supported|unknown error|none|requested functionality)", value.lower()):
        return None
    return value


def _on(text: str | None) -> bool | None:
    return {"enabled": True, "disabled": False}.get((_known(text) or "").lower())


def _mib(text: str | None) -> int | None:
    value = number(_known(text))
    return int(value) * MIB if value is not None else None


def _width(text: str | None) -> int | None:
    match = re.fullmatch(r"(\d{1,2})x?", _known(text) or "")
    return int(match.group(1)) if match else None


def _version(text: str | None) -> str | None:
    match = re.match(r"\d+(\.\d+)+", _known(text) or "")
    return match.group(0) if match else None


def _board(index: int, gpu: Node) -> Board:
    name = _known(gpu.at("product_name"))
    memory = _mib(gpu.at("fb_memory_usage/total"))
    link = "pci/pci_gpu_link_info", "pci/gpu_link_info"
    throttle = [
        child.name.removeprefix("clocks_event_reason_").removeprefix("clocks_throttle_reason_")
        for node in (gpu.node("clocks_event_reasons"), gpu.node("clocks_throttle_reasons"))
        if node is not None
        for parent in (node, *node.children)
        for child in parent.children
        if child.text == "Active"
    ]
    return Board(
        index=index,
        vendor="nvidia",
        name=name,
        uuid=_known(gpu.at("uuid", "gpu_uuid")),
        pci_id=_pci_id(_known(gpu.at("pci/pci_device_id", "pci/device_id"))),
        pci_address=_address(gpu.key or _known(gpu.at("pci/pci_bus_id", "pci/bus_id"))),
        architecture=_known(gpu.at("product_architecture")),
        memory_bytes=memory,
        numa_node=None,
        mig_enabled=_on(gpu.at("mig_mode/current_mig", "mig_mode/current")),
        unified_memory=True if memory is None and NO_DEDICATED_MEMORY.search(name or "") else None,
        c2c=_on(gpu.at("c2c_mode", "gpu_c2c_mode")),
        power_limit_watts=number(
            _known(
                gpu.at(
                    "gpu_power_readings/current_power_limit",
                    "power_readings/enforced_power_limit",
                    "power_readings/power_limit",
                    "gpu_power_readings/power_limit",
                )
            )
        ),
        power_default_watts=number(
            _known(gpu.at("gpu_power_readings/default_power_limit", "power_readings/default_power_limit"))
        ),
        temperature_c=number(_known(gpu.at("temperature/gpu_temp", "temperature/gpu_current_temp"))),
        throttle_reasons=tuple(sorted(set(throttle))),
        persistence=_on(gpu.at("persistence_mode")),
        ecc_enabled=_on(gpu.at("ecc_mode/current_ecc", "ecc_mode/current")),
        ecc_errors=_ecc_errors(gpu),
        compute_mode=_known(gpu.at("compute_mode")),
        virtualization=_known(
            gpu.at("gpu_virtualization_mode/virtualization_mode", "gpu_virtualization_mode/virtualization_mode")
        ),
        state="ok",
        pcie=Pcie(
            generation=whole(
                _known(gpu.at(*(f"{p}/pcie_gen/current_link_gen" for p in link), f"{link[1]}/pcie_generation/current"))
            ),
            generation_max=whole(
                _known(gpu.at(*(f"{p}/pcie_gen/max_link_gen" for p in link), f"{link[1]}/pcie_generation/max"))
            ),
            width=_width(gpu.at(f"{link[0]}/link_widths/current_link_width", f"{link[1]}/link_width/current")),
            width_max=_width(gpu.at(f"{link[0]}/link_widths/max_link_width", f"{link[1]}/link_width/max")),
        ),
    )


def _ecc_errors(gpu: Node) -> int | None:
    """Uncorrectable errors since the last reset, ``None`` where the board does not count them."""
    volatile = gpu.node("ecc_errors/volatile")
    if volatile is None:
        return None
    counts = [whole(_known(c.text)) for c in volatile.children if "uncorrectable" in c.name]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _pci_id(text: str | None) -> str | None:
    """``10de:2330`` from NVML's ``233010DE`` (a vendor's own tool prints other things in that place: refused)."""
    digits = (text or "").lower().removeprefix("0x")
    return f"10de:{digits[:4]}" if re.fullmatch(r"[0-9a-f]{4}10de", digits) else None


def _address(text: str | None) -> str | None:
    """``0000:3b:00.0`` from ``00000000:3B:00.0`` (a domain of 32 bits is kept where it needs them)."""
    match = re.fullmatch(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.(\d)", (text or "").strip())
    if match is None:
        return None
    domain = match.group(1).lower().lstrip("0").zfill(4)
    return f"{domain}:{match.group(2).lower()}:{match.group(3).lower()}.{match.group(4)}"


def _instances(board: Board, gpu: Node) -> list[Accelerator]:
    """MIG devices of a board. Compute instances of one GPU instance share its memory slice."""
    nodes = gpu.every("mig_device")
    holder = gpu.node("mig_devices")
    nodes += holder.every("mig_device") if holder else []
    return [
        Accelerator(
            index=0,
            board=board.index,
            name=board.name,
            memory_bytes=_mib(node.at("fb_memory_usage/total", "shared_fb_memory_usage/total")),
            free_memory_bytes=_mib(node.at("fb_memory_usage/free", "shared_fb_memory_usage/free")),
            compute_units=whole(
                _known(
                    node.at("device_attributes/shared/multiprocessor_count", "device_attributes/multiprocessor_count")
                )
            ),
            gpu_instance=whole(_known(node.at("gpu_instance_id"))),
            compute_instance=whole(_known(node.at("compute_instance_id"))),
            uuid=_known(node.at("uuid")),
        )
        for node in nodes
    ]


def _listed_instances(machine: Machine) -> dict[int, list[tuple[str, str]]]:
    """(profile, UUID) of each MIG device by board, from ``nvidia-smi -L``."""
    found: dict[int, list[tuple[str, str]]] = {}
    board = -1
    for line in (machine.run(("nvidia-smi", "-L"), SECONDS).text or "").splitlines():
        if top := re.match(r"GPU (\d{1,4}):", line):
            board = int(top.group(1))
        elif row := re.match(r"\s+MIG (\S+)\s+Device\s+\d+:\s*\(UUID: (\S+?)\)", line):
            found.setdefault(board, []).append((row.group(1), row.group(2)))
    return found


def _accelerators(
    machine: Machine,
    boards: tuple[Board, ...],
    instances: list[list[Accelerator]],
    free: list[int | None],
    notes: Notes,
) -> tuple[Accelerator, ...]:
    listed = _listed_instances(machine) if any(board.mig_enabled for board in boards) else {}
    found: list[Accelerator] = []
    for board, own, free_bytes in zip(boards, instances, free, strict=True):
        if not usable(board):
            notes.add(f"boards.{board.index}", WHO, f"not usable: {board.compute_mode or board.state}")
        elif board.mig_enabled:
            if not own:
                notes.add(f"boards.{board.index}", WHO, "MIG is on and has no instance: no job can use this board")
            names = listed.get(board.index, [])
            for place, instance in enumerate(own):
                profile, uuid = names[place] if place < len(names) else (None, instance.uuid)
                found.append(replace(instance, profile=profile or instance.profile, uuid=uuid))
        else:
            found.append(
                Accelerator(
                    index=0,
                    board=board.index,
                    name=board.name,
                    memory_bytes=board.memory_bytes,
                    free_memory_bytes=free_bytes,
                    uuid=board.uuid,
                    compute_share=1.0,
                )
            )
    return numbered(tuple(found))


def _query_rows(machine: Machine, name: str = "nvidia-smi-query.csv") -> list[dict[str, str]]:
    """Rows of ``--query-gpu``: column titles without their units."""
    text = machine.run(QUERY, SECONDS).text if machine.live else machine.read(name)
    if not text or "," not in text:
        return []
    try:
        lines = list(csv.reader(io.StringIO(text), skipinitialspace=True))
    except csv.Error:
        return []
    titles = [re.sub(r"\s*\[.*\]$", "", title.strip()) for title in lines[0]]
    if not ({"name", "uuid", "index"} & set(titles)):
        return []
    return [
        dict(zip(titles, (cell.strip() for cell in row), strict=True)) for row in lines[1:] if len(row) == len(titles)
    ]


def _board_of_row(index: int, row: dict[str, str]) -> Board:
    memory = _mib(row.get("memory.total"))
    name = _known(row.get("name"))
    return Board(
        index=index,
        vendor="nvidia",
        name=name,
        uuid=_known(row.get("uuid")),
        pci_id=_pci_id(_known(row.get("pci.device_id"))),
        pci_address=_address(_known(row.get("pci.bus_id"))),
        compute_capability=_capability(row.get("compute_cap")),
        memory_bytes=memory,
        unified_memory=True if memory is None and NO_DEDICATED_MEMORY.search(name or "") else None,
        state="ok",
    )


def _capability(text: str | None) -> str | None:
    value = _known(text) or ""
    return value if re.fullmatch(r"\d{1,2}\.\d", value) else None


def _completed(machine: Machine, boards: list[Board]) -> list[Board]:
    """Compute capability from the query table, and the PCIe generation under load where the recording has it."""
    rows = _query_rows(machine)
    loaded = None if machine.live else machine.read("nvidia-smi-q-load.txt")
    busy = from_indented(loaded).every("gpu") if loaded else []
    done = []
    for place, board in enumerate(boards):
        row = next((r for r in rows if _address(r.get("pci.bus_id")) == board.pci_address), None)
        if row is None and len(rows) == len(boards):
            row = rows[place]
        if row is not None:
            board = replace(board, compute_capability=_capability(row.get("compute_cap")))
        if place < len(busy):
            under_load = whole(_known(busy[place].at("pci/gpu_link_info/pcie_generation/current")))
            board = replace(board, pcie=replace(board.pcie, generation_load=under_load))
        done.append(board)
    return done


def _lost_boards(text: str) -> list[tuple[str, str]]:
    """(PCI address, reason) of boards that the tool could not open: it says so before its table."""
    found = []
    for line in text.splitlines()[:64]:
        match = re.search(
            r"device handle for GPU\s?(?:\d+:\s*)?([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d):?\s*(.*)", line
        )
        if match and (address := _address(match.group(1))):
            found.append((address, squeeze(match.group(2)) or "lost"))
    return found


def _with_lost(boards: tuple[Board, ...], lost: list[tuple[str, str]]) -> tuple[Board, ...]:
    known = {board.pci_address for board in boards}
    new = [(address, why) for address, why in lost if address not in known]
    return boards + tuple(
        Board(
            index=len(boards) + i, vendor="nvidia", pci_address=address, state="lost" if "lost" in why.lower() else why
        )
        for i, (address, why) in enumerate(new)
    )
