"""``nvidia-smi topo -m`` and ``nvidia-smi nvlink -s``: tables that lose tabs, so a row that does not fit is refused."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from hwdetect.machine.cpu_lists import parse_cpu_list
from hwdetect.machine.protocol import Machine
from hwdetect.probes.notes import Notes, run_tool
from hwdetect.probes.parsing import ANSI, parse_integer
from hwdetect.types import Board, Link, PciPath

SECONDS = 2.0
CELL = re.compile(r"X|SYS|NODE|PHB|PXB|PIX|NV\d{1,2}")
SECOND_HEADERS = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
TITLE_WORDS = frozenset(word for title in SECOND_HEADERS for word in title.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Topo:
    """Pairs of boards, boards to ports, and where each board hangs; rows that could not be trusted are missing.

    ``boards`` counts those of the header, or the rows of boards, trusted or not.
    """

    links: tuple[Link, ...] = ()
    paths: tuple[PciPath, ...] = ()
    affinities: dict[int, str] = field(default_factory=dict)
    numa_nodes: dict[int, int] = field(default_factory=dict)
    boards: int = 0


def read_topo(machine: Machine, boards: int, notes: Notes) -> Topo:
    text = run_tool(machine, ("nvidia-smi", "topo", "-m"), SECONDS, notes, "links")
    if text is None:
        return Topo()
    topo, refused = parse_topo(text)
    if refused:
        notes.add("links", "nvidia-smi topo -m", f"{refused} of its rows do not fit the header and were not read")
    missing = topo.boards * (topo.boards - 1) // 2 - len(topo.links)
    if topo.links and missing and not refused:
        notes.add(
            "links",
            "nvidia-smi topo -m",
            f"{missing} pairs of its {topo.boards} boards are not in its answer, or told in two ways",
        )
    if not topo.links and boards > 1 and not refused:
        notes.add("links", "nvidia-smi topo -m", "no table in its answer")
    return topo


def parse_topo(text: str) -> tuple[Topo, int]:
    """The table, and how many rows were refused."""
    # Blanks before a row are an editor's; tabs stand for cells.
    lines = [line.lstrip(" ") for line in ANSI.sub("", text).splitlines()]
    start = next(
        (i for i, line in enumerate(lines) if re.match(r"\s*GPU\d+(\s|$)", line) and " X " not in f" {line} "), None
    )
    if start is None:
        return Topo(), 0
    columns = _split_columns(lines[start])
    gpus = [c for c in columns if re.fullmatch(r"GPU\d+", c)]
    # Ports have the names of their drivers, which nobody lists: mlx5_bond_0, mana_0, cxi0, ens1f0
    ports = [c for c in columns if c not in gpus and c not in TITLE_WORDS]
    names = _read_port_names(lines)
    cells: dict[tuple[int, int], str] = {}
    paths: list[PciPath] = []
    affinities: dict[int, str] = {}
    numa: dict[int, int] = {}
    refused = 0
    for line in lines[start + 1 :]:
        match = re.match(r"GPU(\d{1,4})\s+(.*)", line)
        if match is None:
            continue
        board, row = int(match.group(1)), _split_row(line, len(gpus) + len(ports))
        if row is None or row[0][columns.index(f"GPU{board}") if f"GPU{board}" in columns else 0] != "X":
            refused += 1
            continue
        values, rest = row
        for column, value in zip(gpus + ports, values, strict=True):
            if column in gpus:
                cells[board, int(column[3:])] = value
            else:
                paths.append(PciPath(board=board, port=names.get(column, column), kind=value.lower()))
        _read_place(board, rest, affinities, numa)
    # A pasted table may end early: its header still names every board.
    rows = max(len(gpus), sum(1 for line in lines[start + 1 :] if re.match(r"GPU\d{1,4}\s", line)))
    return Topo(
        links=_list_links(cells), paths=tuple(paths), affinities=affinities, numa_nodes=numa, boards=rows
    ), refused


def _split_columns(header: str) -> list[str]:
    for title in SECOND_HEADERS:
        # Titles of the columns behind the matrix hold blanks.
        header = header.replace(title, "\t")
    return header.split()


def _split_row(line: str, count: int) -> tuple[list[str], list[str]] | None:
    """The matrix cells and what follows them; ``None`` if there are not exactly as many good cells as columns."""
    parts = ([part.strip() for part in line.split("\t")] if "\t" in line else line.split())[1:]
    cells, rest = parts[:count], parts[count:]
    if len(cells) < count or not all(CELL.fullmatch(cell) for cell in cells):
        return None
    # One good cell too many: a tab was lost further left, and every cell may stand under a wrong column.
    return (cells, rest) if not rest or not CELL.fullmatch(rest[0]) else None


def _read_place(board: int, rest: list[str], affinities: dict[int, str], numa: dict[int, int]) -> None:
    """CPU list and NUMA node behind the matrix; a range of nodes names none."""
    if rest and rest[0] and parse_cpu_list(rest[0]):
        affinities[board] = rest[0]
    if len(rest) > 1 and (node := parse_integer(rest[1])) is not None and node >= 0:
        numa[board] = node


def _read_port_names(lines: list[str]) -> dict[str, str]:
    """The legend of newer versions: ``NIC0: mlx5_0``."""
    matches = (re.fullmatch(r"\s*(NIC\d+):\s*(\S+)\s*", line) for line in lines)
    return {match.group(1): match.group(2) for match in matches if match}


def _list_links(cells: dict[tuple[int, int], str]) -> tuple[Link, ...]:
    """One link per pair, from either of the two rows that name it; rows that disagree say nothing."""
    links = []
    for a, b in sorted({(min(p), max(p)) for p in cells if p[0] != p[1]}):
        values = {cells[pair] for pair in ((a, b), (b, a)) if pair in cells}
        if len(values) != 1:
            continue
        (value,) = values
        if value.startswith("NV"):
            links.append(Link(a=a, b=b, kind="nvlink", count=int(value[2:])))
        elif value != "X":
            links.append(Link(a=a, b=b, kind=value.lower()))
    return tuple(links)


def read_nvlink(machine: Machine, boards: tuple[Board, ...], notes: Notes) -> tuple[Board, ...]:
    """Active NVLinks of each board and their rate in one direction."""
    text = run_tool(machine, ("nvidia-smi", "nvlink", "-s"), SECONDS, notes, "boards.nvlinks_active")
    if not text:
        return boards
    current, rates, messages = -1, dict[int, list[float]](), dict[int, str]()
    for line in ANSI.sub("", text).splitlines():
        if top := re.match(r"GPU (\d{1,4}):", line):
            current = int(top.group(1))
        elif row := re.match(r"\s+Link \d+:\s*(\d{1,4}(?:\.\d{1,6})?) GB/s", line):
            rates.setdefault(current, []).append(float(row.group(1)) * 1e9)
        elif line.strip() and current >= 0 and "link" in line.lower() and "<inactive>" not in line:
            messages[current] = line.strip()
        # A board whose links are all down has links, and none is up.
        elif "<inactive>" in line:
            rates.setdefault(current, [])
    done = []
    for board in boards:
        own, why = rates.get(board.index), messages.get(board.index, "")
        if own is None and "inactive" in why.lower():
            own = []
        if own is None and why:
            notes.add(f"boards.{board.index}.nvlinks_active", "nvidia-smi nvlink -s", why)
        if own is not None:
            board = replace(board, nvlinks_active=len(own), nvlink_bytes_per_s=sum(own) or None)
        done.append(board)
    return tuple(done)
