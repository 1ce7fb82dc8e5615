"""Ascend, from ``npu-smi info`` or the driver's device nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hwdetect.machine.protocol import Machine
from hwdetect.probes import pci
from hwdetect.probes.notes import Notes, note_no_board, run_tool
from hwdetect.probes.partial import NOTHING, PartialHardware, list_board_accelerators
from hwdetect.types import Accelerator, Board

SECONDS = 1.5
MIB = 1 << 20
# A row names the card and its health, the one below it a chip with its bus id and its memory in use.
CARD = re.compile(r"\d{1,3}\s+(?:Ascend)?(\d{3}\w{0,8}(?:-\d{1,2})?)")
CHIP = re.compile(r"\d{1,3}(?:\s+\d{1,3})?")
PAIR = re.compile(r"(\d{1,7})\s*/\s*(\d{1,7})(?!\S)")
# Behind the health: the power, "-" or NA where it is told of the card's first chip alone, and the temperature.
HEAT = re.compile(r"(?:\d{1,4}(?:\.\d{1,2})?|-|NA)\s+(\d{1,3})\s")
# Health as the driver words it; the card answers and computes in all of them but the last.
HEALTH = {"ok": "ok", "warning": "warning", "alarm": "alarm", "critical": "critical"}
# A board of the A3 series prints no more than "Ascend910" for each die of its 910C, as the first 910 did, which has half the memory:
# https://github.com/vllm-project/vllm-ascend/issues/2534
UNNAMED, DIE_OF_910C_MIB = "910", 65536
# The 910 of 2019 in its versions, each with 32 GiB. Of the 910B of 2022 every version has a number.
OF_2019, OF_2019_MIB = frozenset(["910", "910A", "910B", "910ProA", "910ProB", "910PremiumA"]), 32768


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    name: str
    state: str
    address: str | None
    used_mib: int | None
    total_mib: int | None
    temperature_c: float | None = None


def read_ascend(machine: Machine, listed: tuple[pci.PciDevice, ...], notes: Notes) -> PartialHardware:
    """Each chip of the table is a device; else the driver's device nodes, named only."""
    devices = [n for n in machine.list_folder("dev") if re.fullmatch(r"davinci\d+", n)]
    if machine.live and not devices:
        return NOTHING
    text = run_tool(machine, ("npu-smi", "info"), SECONDS, notes, "boards", end="Process")
    chips = list(parse_table(text or ""))
    if chips:
        return PartialHardware(
            boards=tuple(_build_board(i, chip) for i, chip in enumerate(chips)),
            accelerators=tuple(_build_accelerator(i, chip) for i, chip in enumerate(chips)),
        )
    note_no_board(notes, "npu-smi", text)
    boards = tuple(Board(index=i, vendor="huawei", name="Ascend", state="ok") for i, _ in enumerate(devices))
    return PartialHardware(boards=boards, accelerators=list_board_accelerators(boards))


def parse_table(text: str) -> Iterator[Chip]:
    """The chips of ``npu-smi info``. Cards that stand without a chip below them are chips whose memory is not told."""
    card: tuple[str, str, float | None] | None = None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.lstrip().startswith("|") or len(cells) < 3:
            continue
        named = CARD.fullmatch(cells[0])
        if named:
            if card:
                yield _name_chip(card)
            heat = HEAT.match(cells[2])
            card = named.group(1), HEALTH.get(cells[1].lower(), "ok"), float(heat.group(1)) if heat else None
        elif card and CHIP.fullmatch(cells[0]):
            # Of memory and HBM the one that the card has none of is told as 0 / 0, in either place.
            sizes = [(int(used), int(total)) for used, total in PAIR.findall(cells[2]) if int(total)]
            used, total = sizes[-1] if sizes else (None, None)
            address = cells[1].lower() if pci.ADDRESS.fullmatch(cells[1].lower()) else None  # NA in a virtual machine
            yield replace(_name_chip(card), address=address, used_mib=used, total_mib=total)
            card = None
    if card:
        yield _name_chip(card)


def _name_chip(card: tuple[str, str, float | None]) -> Chip:
    """A chip of which its card's row alone is known."""
    return Chip(name=card[0], state=card[1], address=None, used_mib=None, total_mib=None, temperature_c=card[2])


def _build_board(index: int, chip: Chip) -> Board:
    return Board(
        index=index,
        vendor="huawei",
        name=f"Ascend {chip.name}",
        device=_tell_unnumbered(chip),
        state=chip.state,
        memory_bytes=chip.total_mib * MIB if chip.total_mib else None,
        pci_address=chip.address,
        temperature_c=chip.temperature_c,
    )


def _tell_unnumbered(chip: Chip) -> str | None:
    """Of the names that two products have, the one whose memory it is."""
    if chip.name == UNNAMED and chip.total_mib == DIE_OF_910C_MIB:
        return "ascend-910c"
    return "ascend-910" if chip.name in OF_2019 and chip.total_mib == OF_2019_MIB else None


def _build_accelerator(index: int, chip: Chip) -> Accelerator:
    known = chip.total_mib is not None and chip.used_mib is not None
    return Accelerator(
        index=index,
        board=index,
        name=f"Ascend {chip.name}",
        memory_bytes=chip.total_mib * MIB if chip.total_mib else None,
        free_memory_bytes=max(0, chip.total_mib - chip.used_mib) * MIB if known else None,
        compute_share=1.0,
    )
