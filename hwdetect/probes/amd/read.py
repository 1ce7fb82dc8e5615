"""AMD boards: the kernel's files (KFD topology and DRM) first, the tools' JSON where those are silent."""

from __future__ import annotations

from dataclasses import replace

from hwdetect.machine.protocol import Machine
from hwdetect.probes import pci
from hwdetect.probes.amd.amd_smi import read_amd_smi
from hwdetect.probes.amd.kfd import INTEGRATED, read_kfd
from hwdetect.probes.amd.rocm_smi import read_rocm_smi
from hwdetect.probes.notes import Notes
from hwdetect.probes.parsing import clean_line, parse_integer
from hwdetect.probes.partial import NOTHING, PartialHardware, fill_unknown
from hwdetect.types import Board, Pcie, Software

VENDOR = "0x1002"


def read_amd(machine: Machine, notes: Notes) -> PartialHardware:
    cards = list_drm_cards(machine)
    kfd = read_kfd(machine, notes)
    kernel = _merge_cards(kfd, cards)
    tools = NOTHING
    silent = not kernel.boards and not pci.is_readable(machine)
    # The tools cost a second: on a live machine only where the kernel leaves names or sizes open.
    if not machine.live or silent or not all(b.name and b.memory_bytes for b in kernel.boards):
        tools = read_amd_smi(machine, notes)
        tools = tools if tools.boards else read_rocm_smi(machine, notes)
    hardware = _merge_tools(kernel, tools)
    # What the BIOS sets aside as VRAM is a part; the rest of the host's memory is mapped as GTT, and as fast.
    boards = tuple(
        replace(b, integrated=True, unified_memory=True) if b.architecture in INTEGRATED else b for b in hardware.boards
    )
    version = clean_line(machine.read("sys/module/amdgpu/version")) if boards else None  # of AMD's own driver package
    return replace(hardware, boards=boards, software=fill_unknown(hardware.software, Software(driver=version)))


def list_drm_cards(machine: Machine) -> tuple[Board, ...]:
    """What amdgpu says of each card: product, memory, link."""
    cards = []
    for name in machine.list_folder("sys/class/drm"):
        folder = f"sys/class/drm/{name}/device"
        if not (name.startswith("card") and name[4:].isdecimal()):  # not its connectors, card0-DP-1
            continue
        if (machine.read(f"{folder}/vendor") or "").strip() != VENDOR:
            continue
        device = parse_integer(machine.read(f"{folder}/device"))
        cards.append(
            Board(
                index=len(cards),
                vendor="amd",
                name=clean_line(machine.read(f"{folder}/product_name")),
                pci_id=f"1002:{device:04x}" if device is not None else None,
                pci_address=_read_address(machine, folder),
                memory_bytes=parse_integer(machine.read(f"{folder}/mem_info_vram_total")) or None,
                numa_node=node
                if (node := parse_integer(machine.read(f"{folder}/numa_node"))) is not None and node >= 0
                else None,
                cpu_affinity=clean_line(machine.read(f"{folder}/local_cpulist")),
                partition_mode=clean_line(machine.read(f"{folder}/current_compute_partition")),
                memory_partition_mode=clean_line(machine.read(f"{folder}/current_memory_partition")),
                pcie=_read_pcie(machine, folder),
            )
        )
    return tuple(cards)


def _read_address(machine: Machine, folder: str) -> str | None:
    for line in (machine.read(f"{folder}/uevent") or "").splitlines():
        if line.startswith("PCI_SLOT_NAME="):
            return line.removeprefix("PCI_SLOT_NAME=").strip().lower()
    last = (machine.resolve_link(folder) or "").rsplit("/", 1)[-1]
    return last if pci.ADDRESS.fullmatch(last) else None


def _read_pcie(machine: Machine, folder: str) -> Pcie:
    return Pcie(
        generation=pci.parse_generation(machine.read(f"{folder}/current_link_speed")),
        generation_max=pci.parse_generation(machine.read(f"{folder}/max_link_speed")),
        width=pci.parse_width(machine.read(f"{folder}/current_link_width")),
        width_max=pci.parse_width(machine.read(f"{folder}/max_link_width")),
    )


def _merge_cards(kfd: PartialHardware, cards: tuple[Board, ...]) -> PartialHardware:
    """KFD's boards completed by the card at the same place; without KFD the cards alone (no compute driver)."""
    if not kfd.boards:
        return PartialHardware(boards=cards)
    by_place = {card.pci_address: card for card in cards if card.pci_address}
    boards = []
    for board in kfd.boards:
        card = by_place.get(board.pci_address)
        if card is not None:
            named = replace(board, name=card.name or board.name, memory_bytes=card.memory_bytes or board.memory_bytes)
            board = fill_unknown(replace(named, pcie=fill_unknown(named.pcie, card.pcie)), card)
        boards.append(board)
    return replace(kfd, boards=tuple(boards))


def _merge_tools(kernel: PartialHardware, tools: PartialHardware) -> PartialHardware:
    """Tool boards laid over the kernel's where both know the place; else whichever has boards."""
    if not kernel.boards or not tools.boards:
        chosen = kernel if kernel.boards else tools
        return replace(chosen, software=fill_unknown(kernel.software, tools.software))
    by_place = {board.pci_address: board for board in tools.boards if board.pci_address}
    boards = []
    for board in kernel.boards:
        other = by_place.get(board.pci_address)
        if other is not None:
            name = other.name if board.name is None or board.name.startswith("gfx") else board.name
            board = fill_unknown(
                replace(board, name=name or board.name, pcie=fill_unknown(board.pcie, other.pcie)), other
            )
        boards.append(board)
    links = kernel.links or tools.links
    return replace(kernel, boards=tuple(boards), links=links, software=fill_unknown(kernel.software, tools.software))
