"""NVIDIA boards from nvidia-smi's shorter answers: the query table, the list of boards (``-L``), the topology's rows."""

from __future__ import annotations

import csv
import io
import itertools
import re
from dataclasses import replace

from hwdetect.machine.commands import SMI_QUERY
from hwdetect.machine.protocol import Machine
from hwdetect.probes.notes import Notes, note_no_board, run_tool
from hwdetect.probes.nvidia.smi_topo import Topo, read_nvlink, read_topo
from hwdetect.probes.nvidia.smi_words import (
    NO_DEDICATED_MEMORY,
    get_reading,
    parse_address,
    parse_mebibytes,
    parse_pci_id,
    parse_switch,
    parse_version,
)
from hwdetect.probes.parsing import clean_line, parse_integer, parse_number
from hwdetect.probes.partial import PartialHardware, is_usable, number_accelerators
from hwdetect.types import Accelerator, Board, Pcie, Software

WHO = "nvidia-smi"
SECONDS = 2.0


def read_short_answers(machine: Machine, lost: list[tuple[str, str]], notes: Notes) -> PartialHardware:
    """Boards from the shorter answers: the query table, else the list of boards, else the rows of the topology."""
    rows = read_query_rows(machine, notes)
    boards, instances = _read_query_boards(machine, rows, notes)
    if not boards:
        boards, instances = _read_board_list(machine, notes)
    topo = read_topo(machine, len(boards), notes)
    if not boards and topo.boards:
        notes.add("boards", WHO, "only topo -m has been answered: boards are counted, not named")
        boards = tuple(Board(index=i, vendor="nvidia", state="ok") for i in range(topo.boards))
    boards = add_places(boards, topo)
    return PartialHardware(
        boards=add_lost_boards(read_nvlink(machine, boards, notes), lost) if boards or lost else (),
        accelerators=number_accelerators(instances) if rows or instances else None,
        links=topo.links,
        paths=topo.paths,
        software=Software(driver=parse_version(rows[0].get("driver_version"))) if rows else Software(),
    )


def add_places(boards: tuple[Board, ...], topo: Topo) -> tuple[Board, ...]:
    return tuple(
        replace(
            board,
            numa_node=board.numa_node if board.numa_node is not None else topo.numa_nodes.get(board.index),
            cpu_affinity=board.cpu_affinity or topo.affinities.get(board.index),
        )
        for board in boards
    )


def _read_query_boards(
    machine: Machine, rows: list[dict[str, str]], notes: Notes
) -> tuple[tuple[Board, ...], tuple[Accelerator, ...]]:
    """Boards of the query table. It knows no MIG devices: ``-L`` lists those, and a job is given them in place of the board."""
    boards = tuple(_build_board(i, row) for i, row in enumerate(rows))
    slices = list_instances(machine, notes) if any(board.mig_enabled is not False for board in boards) else {}
    boards = tuple(replace(board, mig_enabled=True) if slices.get(board.index) else board for board in boards)
    accelerators: list[Accelerator] = []
    for board, row in zip(boards, rows, strict=True):
        own = slices.get(board.index, [])
        if not is_usable(board):
            notes.add(f"boards.{board.index}", WHO, f"not usable: {board.compute_mode}")
        elif board.mig_enabled and not own:
            notes.add(f"boards.{board.index}", WHO, "MIG is on, and `nvidia-smi -L` lists no instance of this board")
        elif own:
            accelerators += [_build_instance(board, *instance) for instance in own]
        else:
            accelerators.append(_build_accelerator(board, row))
    return boards, tuple(accelerators)


def _build_instance(board: Board, profile: str, uuid: str) -> Accelerator:
    """A MIG device as ``-L`` lists it. Ids of the old form hold the numbers of their instances."""
    gi, ci = _parse_old_uuid(uuid)
    return Accelerator(
        index=0,
        board=board.index,
        name=board.name,
        profile=profile,
        uuid=uuid,
        gpu_instance=gi,
        compute_instance=ci,
    )


def _build_accelerator(board: Board, row: dict[str, str]) -> Accelerator:
    return Accelerator(
        index=0,
        board=board.index,
        name=board.name,
        memory_bytes=board.memory_bytes,
        free_memory_bytes=parse_mebibytes(row.get("memory.free")) if board.memory_bytes else None,
        uuid=board.uuid,
        compute_share=1.0,
    )


def _read_board_list(machine: Machine, notes: Notes) -> tuple[tuple[Board, ...], tuple[Accelerator, ...]]:
    """Boards and MIG devices of ``nvidia-smi -L``."""
    boards, accelerators = [], []
    slices = list_instances(machine, notes)
    text = machine.run(("nvidia-smi", "-L"), SECONDS).text or ""
    for row in re.finditer(r"^GPU (\d{1,4}): (.+?) \(UUID: (\S+?)\)", text, re.MULTILINE):
        index, name, own = int(row.group(1)), clean_line(row.group(2)), slices.get(int(row.group(1)), [])
        boards.append(Board(index=index, vendor="nvidia", name=name, uuid=row.group(3), state="ok",
                            mig_enabled=True if own else None))  # fmt: skip
        if not own:
            accelerators.append(Accelerator(index=0, board=index, name=name, uuid=row.group(3), compute_share=1.0))
        accelerators += [_build_instance(boards[-1], *instance) for instance in own]
    if not boards:
        note_no_board(notes, "nvidia-smi -L", text)
    return tuple(boards), tuple(accelerators)


def _parse_old_uuid(uuid: str) -> tuple[int | None, int | None]:
    match = re.fullmatch(r"MIG-GPU-[0-9A-Fa-f-]+/(\d{1,3})/(\d{1,3})", uuid)
    return (int(match.group(1)), int(match.group(2))) if match else (None, None)


def list_instances(machine: Machine, notes: Notes) -> dict[int, list[tuple[str, str]]]:
    """(profile, UUID) of each MIG device by board, from ``nvidia-smi -L``."""
    instances: dict[int, list[tuple[str, str]]] = {}
    board = -1
    for line in (run_tool(machine, ("nvidia-smi", "-L"), SECONDS, notes, "boards.mig") or "").splitlines():
        if top := re.match(r"GPU (\d{1,4}):", line):
            board = int(top.group(1))
        elif row := re.match(r"\s+MIG (\S+)\s+Device\s+\d+:\s*\(UUID: (\S+?)\)", line):
            instances.setdefault(board, []).append((row.group(1), row.group(2)))
    return instances


TITLES = frozenset({"name", "uuid", "index"})


def _read_title(cell: str) -> str:
    return re.sub(r"\s*\[.*\]$", "", cell.strip())  # "memory.total [MiB]"


def _is_header(cells: list[str]) -> bool:
    """Not the command itself, which names the columns too."""
    return bool(TITLES & set(map(_read_title, cells))) and not any("--" in cell for cell in cells)


def read_query_rows(machine: Machine, notes: Notes) -> list[dict[str, str]]:
    """Rows of ``--query-gpu``: column titles without their units."""
    text = run_tool(machine, SMI_QUERY, SECONDS, notes, "boards")
    if not text or "," not in text:
        return []
    try:
        lines = list(csv.reader(io.StringIO(text), skipinitialspace=True))
    except csv.Error:
        return []
    # warnings, and a shell's prompt in what was pasted, may stand before it
    start = next((i for i, line in enumerate(lines) if _is_header(line)), None)
    if start is None:
        note_no_board(notes, " ".join(SMI_QUERY[:2]), text)
        return []
    titles = [_read_title(cell) for cell in lines[start]]
    behind = itertools.takewhile(lambda row: row != lines[start], lines[start + 1 :])  # it may have been asked again
    rows = [row for row in behind if any(cell.strip() for cell in row)]
    whole = [row for row in rows if len(row) == len(titles)]
    if len(whole) < len(rows):
        notes.add(
            "boards",
            " ".join(SMI_QUERY[:2]),
            f"{len(rows) - len(whole)} of its {len(rows)} rows do not fit the header and were not read",
        )
    return [dict(zip(titles, (cell.strip() for cell in row), strict=True)) for row in whole]


def _build_board(index: int, row: dict[str, str]) -> Board:
    memory = parse_mebibytes(row.get("memory.total"))
    name = get_reading(row.get("name"))
    return Board(
        index=index,
        vendor="nvidia",
        name=name,
        uuid=get_reading(row.get("uuid")),
        pci_id=parse_pci_id(get_reading(row.get("pci.device_id"))),
        pci_address=parse_address(get_reading(row.get("pci.bus_id"))),
        compute_capability=parse_capability(row.get("compute_cap")),
        memory_bytes=memory,
        unified_memory=True if memory is None and NO_DEDICATED_MEMORY.search(name or "") else None,
        mig_enabled=parse_switch(row.get("mig.mode.current")),
        compute_mode=get_reading(row.get("compute_mode")),
        power_limit_watts=parse_number(get_reading(row.get("power.limit"))),
        power_default_watts=parse_number(get_reading(row.get("power.default_limit"))),
        temperature_c=parse_number(get_reading(row.get("temperature.gpu"))),
        ecc_enabled=parse_switch(row.get("ecc.mode.current")),
        state="ok",
        pcie=Pcie(
            generation=parse_integer(get_reading(row.get("pcie.link.gen.current"))),
            generation_max=parse_integer(get_reading(row.get("pcie.link.gen.max"))),
            width=parse_integer(get_reading(row.get("pcie.link.width.current"))),
            width_max=parse_integer(get_reading(row.get("pcie.link.width.max"))),
        ),
    )


def parse_capability(text: str | None) -> str | None:
    value = get_reading(text) or ""
    return value if re.fullmatch(r"\d{1,2}\.\d", value) else None


def list_lost_boards(text: str) -> list[tuple[str, str]]:
    """(PCI address, reason) of boards that the tool could not open: it says so before its table."""
    lost = []
    for line in text.splitlines()[:64]:  # the complaints stand before everything else
        match = re.search(
            r"device handle for GPU\s?(?:\d+:\s*)?([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d):?\s*(.*)", line
        )
        if match and (place := parse_address(match.group(1))):
            lost.append((place, clean_line(match.group(2)) or "lost"))
    return lost


def add_lost_boards(boards: tuple[Board, ...], lost: list[tuple[str, str]]) -> tuple[Board, ...]:
    there = {board.pci_address for board in boards}
    new = [(place, why) for place, why in lost if place not in there]
    return boards + tuple(
        Board(index=len(boards) + i, vendor="nvidia", pci_address=place, state="lost" if "lost" in why.lower() else why)
        for i, (place, why) in enumerate(new)
    )
