"""NVIDIA boards from nvidia-smi's shorter answers: the query table, the list of boards (``-L``), the topology's rows."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace

from hwdetect.machine import SMI_QUERY, Machine
from hwdetect.probes.found import Found, numbered, usable
from hwdetect.probes.nvidia_topo import Topo, read_nvlink, read_topo
from hwdetect.probes.nvidia_words import NO_DEDICATED_MEMORY, address, known, mebibytes, on, pci_id, version
from hwdetect.probes.reading import Notes, number, squeeze, told_by, whole
from hwdetect.types import Accelerator, Board, Pcie, Software

WHO = "nvidia-smi"
SECONDS = 2.0


def without_a_log(machine: Machine, lost: list[tuple[str, str]], notes: Notes) -> Found:
    """Boards from the shorter answers: the query table, else the list of boards, else the rows of the topology."""
    rows = query_rows(machine, notes)
    boards = tuple(_board_of_row(i, row) for i, row in enumerate(rows))
    accelerators = numbered(
        tuple(_accelerator_of_row(*pair) for pair in zip(boards, rows, strict=True) if usable(pair[0]))
    )
    if not boards:
        boards, instances = _listed_boards(machine, notes)
        accelerators = numbered(instances) if instances else None
    topo = read_topo(machine, len(boards), notes)
    if not boards and topo.boards:
        notes.add("boards", WHO, "only topo -m has been answered: boards are counted, not named")
        boards = tuple(Board(index=i, vendor="nvidia", state="ok") for i in range(topo.boards))
    boards = placed(boards, topo)
    return Found(
        boards=with_lost(read_nvlink(machine, boards, notes), lost) if boards or lost else (),
        accelerators=accelerators or None,
        links=topo.links,
        paths=topo.paths,
        software=Software(driver=version(rows[0].get("driver_version"))) if rows else Software(),
    )


def placed(boards: tuple[Board, ...], topo: Topo) -> tuple[Board, ...]:
    return tuple(
        replace(
            board,
            numa_node=board.numa_node if board.numa_node is not None else topo.numa_nodes.get(board.index),
            cpu_affinity=board.cpu_affinity or topo.affinities.get(board.index),
        )
        for board in boards
    )


def _accelerator_of_row(board: Board, row: dict[str, str]) -> Accelerator:
    return Accelerator(
        index=0,
        board=board.index,
        name=board.name,
        memory_bytes=board.memory_bytes,
        free_memory_bytes=mebibytes(row.get("memory.free")) if board.memory_bytes else None,
        uuid=board.uuid,
        compute_share=1.0,
    )


def _listed_boards(machine: Machine, notes: Notes) -> tuple[tuple[Board, ...], tuple[Accelerator, ...]]:
    """Boards and MIG devices of ``nvidia-smi -L``. Ids of the old form hold the numbers of their instances."""
    boards, accelerators = [], []
    slices = listed_instances(machine, notes)
    text = machine.run(("nvidia-smi", "-L"), SECONDS).text or ""
    for row in re.finditer(r"^GPU (\d{1,4}): (.+?) \(UUID: (\S+?)\)", text, re.MULTILINE):
        index, name, own = int(row.group(1)), squeeze(row.group(2)), slices.get(int(row.group(1)), [])
        boards.append(Board(index=index, vendor="nvidia", name=name, uuid=row.group(3), state="ok",
                            mig_enabled=True if own else None))  # fmt: skip
        if not own:
            accelerators.append(Accelerator(index=0, board=index, name=name, uuid=row.group(3), compute_share=1.0))
        for profile, uuid in own:
            gi, ci = _old_id(uuid)
            accelerators.append(Accelerator(index=0, board=index, name=name, profile=profile, uuid=uuid,
                                            gpu_instance=gi, compute_instance=ci))  # fmt: skip
    return tuple(boards), tuple(accelerators)


def _old_id(uuid: str) -> tuple[int | None, int | None]:
    match = re.fullmatch(r"MIG-GPU-[0-9A-Fa-f-]+/(\d{1,3})/(\d{1,3})", uuid)
    return (int(match.group(1)), int(match.group(2))) if match else (None, None)


def listed_instances(machine: Machine, notes: Notes) -> dict[int, list[tuple[str, str]]]:
    """(profile, UUID) of each MIG device by board, from ``nvidia-smi -L``."""
    found: dict[int, list[tuple[str, str]]] = {}
    board = -1
    for line in (told_by(machine, ("nvidia-smi", "-L"), SECONDS, notes, "boards.mig") or "").splitlines():
        if top := re.match(r"GPU (\d{1,4}):", line):
            board = int(top.group(1))
        elif row := re.match(r"\s+MIG (\S+)\s+Device\s+\d+:\s*\(UUID: (\S+?)\)", line):
            found.setdefault(board, []).append((row.group(1), row.group(2)))
    return found


def query_rows(machine: Machine, notes: Notes) -> list[dict[str, str]]:
    """Rows of ``--query-gpu``: column titles without their units."""
    text = told_by(machine, SMI_QUERY, SECONDS, notes, "boards")
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
    memory = mebibytes(row.get("memory.total"))
    name = known(row.get("name"))
    return Board(
        index=index,
        vendor="nvidia",
        name=name,
        uuid=known(row.get("uuid")),
        pci_id=pci_id(known(row.get("pci.device_id"))),
        pci_address=address(known(row.get("pci.bus_id"))),
        compute_capability=capability(row.get("compute_cap")),
        memory_bytes=memory,
        unified_memory=True if memory is None and NO_DEDICATED_MEMORY.search(name or "") else None,
        mig_enabled=on(row.get("mig.mode.current")),
        compute_mode=known(row.get("compute_mode")),
        power_limit_watts=number(known(row.get("power.limit"))),
        power_default_watts=number(known(row.get("power.default_limit"))),
        temperature_c=number(known(row.get("temperature.gpu"))),
        ecc_enabled=on(row.get("ecc.mode.current")),
        state="ok",
        pcie=Pcie(
            generation=whole(known(row.get("pcie.link.gen.current"))),
            generation_max=whole(known(row.get("pcie.link.gen.max"))),
            width=whole(known(row.get("pcie.link.width.current"))),
            width_max=whole(known(row.get("pcie.link.width.max"))),
        ),
    )


def capability(text: str | None) -> str | None:
    value = known(text) or ""
    return value if re.fullmatch(r"\d{1,2}\.\d", value) else None


def lost_boards(text: str) -> list[tuple[str, str]]:
    """(PCI address, reason) of boards that the tool could not open: it says so before its table."""
    found = []
    for line in text.splitlines()[:64]:
        match = re.search(
            r"device handle for GPU\s?(?:\d+:\s*)?([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d):?\s*(.*)", line
        )
        if match and (place := address(match.group(1))):
            found.append((place, squeeze(match.group(2)) or "lost"))
    return found


def with_lost(boards: tuple[Board, ...], lost: list[tuple[str, str]]) -> tuple[Board, ...]:
    there = {board.pci_address for board in boards}
    new = [(place, why) for place, why in lost if place not in there]
    return boards + tuple(
        Board(index=len(boards) + i, vendor="nvidia", pci_address=place, state="lost" if "lost" in why.lower() else why)
        for i, (place, why) in enumerate(new)
    )
