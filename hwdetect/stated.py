"""What a user says of a machine that was described or read: host memory, disk, links. It takes the place of what was assumed.

host memory   512gb, 1.5tb                            GiB and TiB, as in a spec
disk          nvme, ssd, hdd, network; nvme,7gb/s     under the working folder; its rate in GB/s
link          pcie4x16                                every board's connection to the host, and to the boards beside it
              pcie                                    no bridge and no NVLink: boards talk over PCIe
              nvlink                                  bridges in pairs, of boards that are sold with and without
              300gb/s                                 one direction between two boards
"""

from __future__ import annotations

import re
from dataclasses import replace

from hwdetect import catalog
from hwdetect.spec import GIB, SpecError
from hwdetect.topology import get_pcie_bytes_per_s, list_peer_links
from hwdetect.types import Board, Device, Disk, Hardware, Link

DISKS = ("nvme", "ssd", "hdd", "network")
OVER_PCIE = ("pcie", "pix", "pxb", "phb", "node", "sys")
_SIZE = re.compile(r"(\d{1,7}(?:\.\d{1,3})?) ?(g|t)(?:i?b)?", re.ASCII)
_RATE = re.compile(r"(\d{1,5}(?:\.\d{1,3})?) ?gb/s", re.ASCII)
_PCIE = re.compile(r"pcie ?([3-6])(?:\.0)? ?x ?(1|2|4|8|16)", re.ASCII)


def state_host_memory(hardware: Hardware, text: str) -> Hardware:
    """With so much host memory, all of it for the job. Raises ``SpecError``."""
    match = _SIZE.fullmatch(text.strip().lower())
    if not match or not float(match[1]):
        raise SpecError(f"{text!r} is no amount of memory: 512gb, 1.5tb")
    size = round(float(match[1]) * GIB * (1024 if match[2] == "t" else 1))
    memory = replace(hardware.memory, total_bytes=size, available_bytes=size, limit_bytes=None)
    return _drop_assumptions(replace(hardware, memory=memory), "memory.total_bytes")


def state_disk(hardware: Hardware, text: str) -> Hardware:
    """With this disk under the working folder, in place of those that were read. Raises ``SpecError``."""
    kind, _, rate = text.strip().lower().partition(",")
    if kind not in DISKS:
        raise SpecError(f"{text!r}: a disk is one of {', '.join(DISKS)}, with its rate after a comma (nvme,7gb/s)")
    disk = Disk(role="work", kind=kind, read_bytes_per_s=_parse_rate(rate, text) if rate else None)
    return replace(hardware, disks=(disk,))


def state_links(hardware: Hardware, text: str) -> Hardware:
    """With its boards joined so. Raises ``SpecError``."""
    asked = text.strip().lower()
    if not hardware.boards:
        raise SpecError(f"{text!r}: this machine has no boards that links could join")
    if match := _PCIE.fullmatch(asked):
        return _state_pcie(hardware, int(match[1]), int(match[2]))
    if asked in ("pcie", "nvlink"):
        links = _join_boards(hardware.boards, asked)
    else:
        rate = _parse_rate(asked, text)
        links = tuple(replace(link, bandwidth_bytes_per_s=rate) for link in hardware.links)
    if not links or any(board.mig_enabled for board in hardware.boards):  # parts of boards have no access to each other
        raise SpecError(f"{text!r}: no link between boards of this machine is known; pcie4x16 is that to the host")
    return replace(hardware, links=links)


def _state_pcie(hardware: Hardware, generation: int, width: int) -> Hardware:
    rate = get_pcie_bytes_per_s(generation, width)
    boards = tuple(
        replace(
            board,
            pcie=replace(board.pcie, generation=generation, generation_max=generation, width=width, width_max=width),
        )
        for board in hardware.boards
    )
    links = tuple(
        replace(link, bandwidth_bytes_per_s=rate) if link.kind in OVER_PCIE else link for link in hardware.links
    )
    return replace(hardware, boards=boards, links=links)


def _join_boards(boards: tuple[Board, ...], how: str) -> tuple[Link, ...]:
    """Every pair of boards; their numbers are those of the machine."""
    device = _find_device(boards)
    if how == "nvlink" and not device.link_bridge:
        joined = f"are joined by {device.link_kind} as it is" if device.link_kind else "have no NVLink"
        raise SpecError(f"nvlink: bridges are not sold for {device.name}, which {joined}")
    plain = device if how == "nvlink" else replace(device, link_kind=None, link_bridge=False)
    links = list_peer_links(plain, len(boards), bridged=how == "nvlink")
    return tuple(replace(link, a=boards[link.a].index, b=boards[link.b].index) for link in links)


def _find_device(boards: tuple[Board, ...]) -> Device:
    kinds = {board.device for board in boards}
    if len(kinds) > 1 or None in kinds:
        raise SpecError("boards that differ, or are not in the catalogue: say the rate between them (25gb/s)")
    return catalog.load(str(boards[0].device))


def _parse_rate(text: str, whole: str) -> float:
    """Bytes per second."""
    match = _RATE.fullmatch(text.strip())
    if not match or not float(match[1]):
        raise SpecError(f"{whole!r}: {text!r} is no rate: 7gb/s, 25.5gb/s")
    return float(match[1]) * 1e9


def _drop_assumptions(hardware: Hardware, field: str) -> Hardware:
    """Without the note that a value was assumed which is known now."""
    notes = tuple(note for note in hardware.notes if (note.who, note.field) != ("spec", field))
    return replace(hardware, notes=notes)
