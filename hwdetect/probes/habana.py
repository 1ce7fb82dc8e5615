"""Gaudi, from ``hl-smi`` (asked for fields, else its plain table) or the PCI tree."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hwdetect.machine.protocol import Machine
from hwdetect.probes import pci
from hwdetect.probes.notes import Notes, note_no_board, run_tool
from hwdetect.probes.parsing import parse_mebibytes
from hwdetect.probes.partial import NOTHING, PartialHardware, list_board_accelerators
from hwdetect.types import Accelerator, Board, Software

SECONDS = 1.5
QUERY = ("hl-smi", "-Q", "index,uuid,name,memory.total,memory.used", "-f", "csv")
# Two lines a board: | 0  HL-225  N/A | 0000:b3:00.0  N/A |, and below it temperature, power and memory.
NAMED = re.compile(r"^\|\s*\d{1,3}\s+(HL-\w{2,12})\s.*?\|\s*([0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s")
READ = re.compile(r"^\|\s*\S+\s+(\d{1,3})C\s.*?/\s*(\d{1,4})W\s*\|\s*(\d{1,7})MiB\s*/\s*(\d{1,7})MiB\s*\|")
DRIVER = re.compile(r"^\|\s*Driver Version:\s+(\S+)\s*\|", re.MULTILINE)


def read_gaudi(machine: Machine, listed: tuple[pci.PciDevice, ...], notes: Notes) -> PartialHardware:
    """Boards of the tool, else PCI devices of Habana (1da3)."""
    chips = [device for device in listed if device.vendor == 0x1DA3]
    if machine.live and not chips:
        return NOTHING
    rows = list(_read_query(machine, chips, notes))
    if rows:
        return PartialHardware(boards=tuple(b for b, _ in rows), accelerators=_list_accelerators(rows))
    text = run_tool(machine, ("hl-smi",), SECONDS, notes, "boards", end="Process") or ""
    rows = list(_read_table(text))
    if rows:
        driver = DRIVER.search(text)
        return PartialHardware(
            boards=tuple(b for b, _ in rows),
            accelerators=_list_accelerators(rows),
            software=Software(driver=driver.group(1) if driver else None),
        )
    note_no_board(notes, "hl-smi", text)
    boards = tuple(Board(index=i, vendor="habana", pci_id=d.pci_id, pci_address=d.address) for i, d in enumerate(chips))
    return PartialHardware(boards=boards, accelerators=list_board_accelerators(boards))


def _read_query(machine: Machine, chips: list[pci.PciDevice], notes: Notes) -> Iterator[tuple[Board, int | None]]:
    """Each board and the bytes in use, of the rows that were asked for."""
    index = 0
    for line in (run_tool(machine, QUERY, SECONDS, notes, "boards") or "").splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 5 or not cells[0].isdecimal():
            continue
        yield (
            Board(index=index, vendor="habana", name=cells[2] or None, uuid=cells[1] or None, state="ok",
                  memory_bytes=parse_mebibytes(cells[3]) or None,
                  pci_id=chips[index].pci_id if index < len(chips) else None),
            parse_mebibytes(cells[4]),
        )  # fmt: skip
        index += 1


def _read_table(text: str) -> Iterator[tuple[Board, int | None]]:
    index, named = 0, None
    for line in text.splitlines():
        named = NAMED.match(line) or named
        read = READ.match(line)
        if named is None or read is None:
            continue
        degrees, watts, used, total = map(int, read.groups())
        yield (
            Board(index=index, vendor="habana", name=named.group(1), pci_address=named.group(2).lower(), state="ok",
                  memory_bytes=total << 20 or None, temperature_c=float(degrees), power_limit_watts=float(watts)),
            used << 20,
        )  # fmt: skip
        index, named = index + 1, None


def _list_accelerators(rows: list[tuple[Board, int | None]]) -> tuple[Accelerator, ...]:
    return tuple(
        Accelerator(index=b.index, board=b.index, name=b.name, memory_bytes=b.memory_bytes, compute_share=1.0,
                    free_memory_bytes=max(0, b.memory_bytes - used) if b.memory_bytes and used is not None else None)
        for b, used in rows
    )  # fmt: skip
