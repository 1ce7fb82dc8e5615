"""AMD boards: the kernel's files (KFD topology and DRM) first, the tools' JSON where those are silent."""

from __future__ import annotations

from dataclasses import replace

from hwdetect.machine import Machine
from hwdetect.probes import pci
from hwdetect.probes.amd_kfd import read_kfd
from hwdetect.probes.amd_smi import read_amd_smi
from hwdetect.probes.found import NOTHING, Found
from hwdetect.probes.reading import Notes, merged, squeeze, whole
from hwdetect.probes.rocm_smi import read_rocm_smi
from hwdetect.types import Board, Software

VENDOR = "0x1002"
# Graphics parts of processors, by LLVM's target table (APU rows): https://llvm.org/docs/AMDGPUUsage.html#processors
INTEGRATED = frozenset(
    [
        "gfx801",
        "gfx902",
        "gfx909",
        "gfx90c",
        "gfx1013",
        "gfx1033",
        "gfx1035",
        "gfx1036",
        "gfx1103",
        "gfx1150",
        "gfx1151",
        "gfx1152",
        "gfx1153",
    ]
)


def read_amd(machine: Machine, notes: Notes) -> Found:
    cards = drm_cards(machine)
    kfd = read_kfd(machine, notes)
    kernel = _kernel(kfd, cards)
    tools = NOTHING
    silent = not kernel.boards and not pci.readable(machine)
    if not machine.live or silent or not all(b.name and b.memory_bytes for b in kernel.boards):
        tools = read_amd_smi(machine, notes)
        tools = tools if tools.boards else read_rocm_smi(machine, notes)
    found = _joined(kernel, tools)
    boards = tuple(replace(b, integrated=True) if b.architecture in INTEGRATED else b for b in found.boards)
    version = squeeze(machine.read("sys/module/amdgpu/version")) if boards else None  # of AMD's own driver package
    return replace(found, boards=boards, software=merged(found.software, Software(driver=version)))


def drm_cards(machine: Machine) -> tuple[Board, ...]:
    """What amdgpu says of each card: product, memory, link."""
    found = []
    for name in machine.listing("sys/class/drm"):
        folder = f"sys/class/drm/{name}/device"
        if not (name.startswith("card") and name[4:].isdecimal()):
            continue
        if (machine.read(f"{folder}/vendor") or "").strip() != VENDOR:
            continue
        device = whole(machine.read(f"{folder}/device"))
        found.append(
            Board(
                index=len(found),
                vendor="amd",
                name=squeeze(machine.read(f"{folder}/product_name")),
                pci_id=f"1002:{device:04x}" if device is not None else None,
                pci_address=_address(machine, folder),
                memory_bytes=whole(machine.read(f"{folder}/mem_info_vram_total")) or None,
                numa_node=node
                if (node := whole(machine.read(f"{folder}/numa_node"))) is not None and node >= 0
                else None,
                cpu_affinity=squeeze(machine.read(f"{folder}/local_cpulist")),
                partition_mode=squeeze(machine.read(f"{folder}/current_compute_partition")),
                memory_partition_mode=squeeze(machine.read(f"{folder}/current_memory_partition")),
                pcie=_pcie(machine, folder),
            )
        )
    return tuple(found)


def _address(machine: Machine, folder: str) -> str | None:
    for line in (machine.read(f"{folder}/uevent") or "").splitlines():
        if line.startswith("PCI_SLOT_NAME="):
            return line.removeprefix("PCI_SLOT_NAME=").strip().lower()
    last = (machine.link(folder) or "").rsplit("/", 1)[-1]
    return last if pci.ADDRESS.fullmatch(last) else None


def _pcie(machine: Machine, folder: str):
    from hwdetect.types import Pcie

    return Pcie(
        generation=pci.generation(machine.read(f"{folder}/current_link_speed")),
        generation_max=pci.generation(machine.read(f"{folder}/max_link_speed")),
        width=pci.width(machine.read(f"{folder}/current_link_width")),
        width_max=pci.width(machine.read(f"{folder}/max_link_width")),
    )


def _kernel(kfd: Found, cards: tuple[Board, ...]) -> Found:
    """KFD's boards completed by the card at the same place; without KFD the cards alone (no compute driver)."""
    if not kfd.boards:
        return Found(boards=cards)
    by_place = {card.pci_address: card for card in cards if card.pci_address}
    boards = []
    for board in kfd.boards:
        card = by_place.get(board.pci_address)
        if card is not None:
            named = replace(board, name=card.name or board.name, memory_bytes=card.memory_bytes or board.memory_bytes)
            board = merged(replace(named, pcie=merged(named.pcie, card.pcie)), card)
        boards.append(board)
    return replace(kfd, boards=tuple(boards))


def _joined(kernel: Found, tools: Found) -> Found:
    """Tool boards laid over the kernel's where both know the place; else whichever has boards."""
    if not kernel.boards or not tools.boards:
        chosen = kernel if kernel.boards else tools
        return replace(chosen, software=merged(kernel.software, tools.software))
    by_place = {board.pci_address: board for board in tools.boards if board.pci_address}
    boards = []
    for board in kernel.boards:
        other = by_place.get(board.pci_address)
        if other is not None:
            name = other.name if board.name is None or board.name.startswith("gfx") else board.name
            board = merged(replace(board, name=name or board.name, pcie=merged(board.pcie, other.pcie)), other)
        boards.append(board)
    links = kernel.links or tools.links
    return replace(kernel, boards=tuple(boards), links=links, software=merged(kernel.software, tools.software))
