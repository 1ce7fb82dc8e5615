"""Intel GPUs: DRM files of the i915 and xe drivers, and ``xpu-smi discovery``. A card may be used as its tiles."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace

from hwdetect.machine.protocol import Machine
from hwdetect.probes import pci
from hwdetect.probes.notes import Notes, note_no_board, run_tool
from hwdetect.probes.parsing import clean_line, get_mapping, get_text, parse_integer, parse_json, parse_mebibytes
from hwdetect.probes.partial import NOTHING, PartialHardware, fill_unknown, number_accelerators
from hwdetect.types import Accelerator, Board

SECONDS = 2.0
VENDOR = 0x8086
INTEGRATED_ADDRESS = "0000:00:02.0"
ECC_STATES = {"enabled": True, "disabled": False}
KINDS = ("GPU", "Discrete GPU")
DISPLAY = frozenset({0x0300, 0x0380, 0x0302})


def read_intel(machine: Machine, notes: Notes) -> PartialHardware:
    """Boards from the tool, else those of the PCI tree that have local memory (a processor's own graphics has none)."""
    listed = tuple(d for d in pci.list_pci_devices(machine, DISPLAY) if d.vendor == VENDOR)
    cards = tuple(board for i, device in enumerate(listed) if (board := _read_card(machine, i, device)))
    asked = cards or not machine.live or not pci.is_readable(machine)
    tool, free = _run_discovery(machine, notes) if asked else ((), {})
    if not tool and not cards:
        return NOTHING
    by_place = {card.pci_address: card for card in cards}
    boards = tuple(
        fill_unknown(board, by_place.get(board.pci_address, Board(index=0, vendor="intel"))) for board in tool
    ) or tuple(replace(card, index=i) for i, card in enumerate(cards))
    return PartialHardware(boards=boards, accelerators=_list_accelerators(machine, boards, free))


def _read_card(machine: Machine, index: int, device: pci.PciDevice) -> Board | None:
    """A board with local memory, by what i915 (``lmem_total_bytes``) or xe (``vram``) shows; else ``None``."""
    memory, tiles = None, 0
    for name in machine.list_folder(f"{pci.DEVICES}/{device.address}/drm"):
        folder = f"{pci.DEVICES}/{device.address}/drm/{name}"
        memory = memory or parse_integer(machine.read(f"{folder}/lmem_total_bytes"))
        # i915 shows one gt folder per tile.
        tiles = max(tiles, sum(1 for gt in machine.list_folder(f"{folder}/gt") if re.fullmatch(r"gt\d", gt)))
    vram = [
        parse_integer(machine.read(f"{pci.DEVICES}/{device.address}/{tile}/physical_vram_size_bytes"))
        for tile in machine.list_folder(f"{pci.DEVICES}/{device.address}")
        if re.fullmatch(r"tile\d", tile)
    ]
    tiles = max(tiles, len(vram))
    memory = memory or sum(size for size in vram if size) or None
    if memory is None and device.address == INTEGRATED_ADDRESS:
        return None  # where every Intel processor with graphics has it
    return Board(
        index=index,
        vendor="intel",
        pci_id=device.pci_id,
        pci_address=device.address,
        memory_bytes=memory,
        numa_node=pci.read_numa_node(machine, device.address),
        cpu_affinity=pci.read_local_cpus(machine, device.address),
        partition_mode=f"{tiles} tiles" if tiles > 1 else None,
        pcie=pci.read_pcie(machine, device.address),
        state="ok" if machine.exists(f"{pci.DEVICES}/{device.address}/drm") else "no-driver",
    )


def _run_discovery(machine: Machine, notes: Notes) -> tuple[tuple[Board, ...], dict[int, int]]:
    """``xpu-smi discovery -j``: cards (of one or two tiles), not tiles; and the bytes that are free, by card."""
    text = run_tool(machine, ("xpu-smi", "discovery", "-j"), SECONDS, notes, "boards")
    if not text and not machine.live:
        return _read_dump(run_tool(machine, ("xpu-smi", "discovery", "--dump", "-1"), SECONDS, notes, "boards")), {}
    listed = get_mapping(parse_json(text)).get("device_list")
    if not isinstance(listed, list):
        note_no_board(notes, "xpu-smi", text)
        return (), {}
    cards = [entry for entry in map(get_mapping, listed) if _is_card(entry)]
    free = {i: parse_integer(get_text(entry.get("memory_free_size_byte"))) for i, entry in enumerate(cards)}
    known = {i: size for i, size in free.items() if size is not None}
    return tuple(_build_board(i, entry) for i, entry in enumerate(cards)), known


def _read_dump(text: str | None) -> tuple[Board, ...]:
    """What ``xpu-smi discovery --dump`` prints, as recordings have it: one line a card, N/A for memory in some versions."""
    rows = csv.DictReader(io.StringIO(text or ""))
    return tuple(
        Board(
            index=i,
            vendor="intel",
            name=clean_line(row["Device Name"]),
            uuid=get_text(row.get("SOC UUID")),
            pci_address=(get_text(row.get("PCI BDF Address")) or "").lower() or None,
            memory_bytes=parse_mebibytes(row.get("Memory Physical Size")),
            partition_mode=_count_known_tiles(row["Device Name"]),
            state="ok",
        )
        for i, row in enumerate(rows)
        if row.get("Device Name") and (row.get("PCI BDF Address") or "").lower() != INTEGRATED_ADDRESS
    )


def _count_known_tiles(name: str | None) -> str | None:
    """The two stacks of a Max 1550, which some versions of the tool do not count.

    https://www.intel.com/content/www/us/en/docs/oneapi/optimization-guide-gpu/2025-1/intel-xe-gpu-architecture.html
    """
    return "2 tiles" if "Max 1550" in (name or "") else None


def _is_card(entry: dict[str, object]) -> bool:
    """A GPU of its own: no function of one that a virtual machine is given, and no graphics of the processor."""
    kind, function = get_text(entry.get("device_type")), get_text(entry.get("device_function_type"))
    address = (get_text(entry.get("pci_bdf_address")) or "").lower()
    # Where every Intel processor with graphics has it.
    return (kind or "GPU") in KINDS and function != "virtual" and address != INTEGRATED_ADDRESS


def _build_board(index: int, entry: dict[str, object]) -> Board:
    device = parse_integer(get_text(entry.get("pci_device_id")))
    return Board(
        index=index,
        vendor="intel",
        name=clean_line(get_text(entry.get("device_name"))),
        uuid=get_text(entry.get("uuid")),
        pci_id=f"8086:{device:04x}" if device is not None and 0 <= device < 1 << 16 else None,
        pci_address=(get_text(entry.get("pci_bdf_address")) or "").lower() or None,
        memory_bytes=parse_integer(get_text(entry.get("memory_physical_size_byte")))
        or parse_mebibytes(get_text(entry.get("memory_physical_size"))),
        ecc_enabled=ECC_STATES.get((get_text(entry.get("memory_ecc_state")) or "").lower()),
        partition_mode=(f"{tiles} tiles" if tiles > 1 else None)
        if (tiles := parse_integer(get_text(entry.get("number_of_tiles")))) is not None
        else _count_known_tiles(get_text(entry.get("device_name"))),
        state="ok",
    )


def _list_accelerators(machine: Machine, boards: tuple[Board, ...], free: dict[int, int]) -> tuple[Accelerator, ...]:
    """Each tile of a card (the driver's flat hierarchy, default since 2024), or each card where it is composite.

    https://www.intel.com/content/www/us/en/developer/articles/technical/flattening-gpu-tile-hierarchy.html
    """
    composite = machine.get_variable("ZE_FLAT_DEVICE_HIERARCHY") in ("COMPOSITE", "COMBINED")
    accelerators = []
    for board in boards:
        if board.state != "ok":
            continue
        tiles = 1 if composite or board.partition_mode is None else int(board.partition_mode.split()[0])
        for tile in range(tiles):
            accelerators.append(
                Accelerator(
                    index=0,
                    board=board.index,
                    name=board.name,
                    memory_bytes=board.memory_bytes // tiles if board.memory_bytes else None,
                    # of a card with tiles the tool adds both up
                    free_memory_bytes=free.get(board.index) if tiles == 1 else None,
                    profile=f"tile {tile}" if tiles > 1 else None,
                    uuid=board.uuid,
                    compute_share=1.0 / tiles,  # tiles are equal parts of a card
                )
            )
    return number_accelerators(tuple(accelerators))
