"""``amd-smi static --json`` (and ``metric`` for what is in use): a list of boards, or one under ``gpu_data``."""

from __future__ import annotations

import re
from dataclasses import replace

from hwdetect.machine import Machine
from hwdetect.probes.found import NOTHING, Found, numbered
from hwdetect.probes.pci import GENERATIONS
from hwdetect.probes.reading import Notes, json_of, mapping, number, text_of, told_by, whole
from hwdetect.types import Accelerator, Board, Link, Pcie, Software

SECONDS = 2.0
UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "MiB": 1 << 20, "GiB": 1 << 30}


def read_amd_smi(machine: Machine, notes: Notes) -> Found:
    entries = _entries(json_of(told_by(machine, ("amd-smi", "static", "--json"), SECONDS, notes, "boards")))
    if not entries:
        return NOTHING
    now = _metrics(machine, notes)
    boards = tuple(_with_metrics(_board(i, entry), now.get(i, {})) for i, entry in enumerate(entries))
    used = {i: size for i, entry in now.items() if (size := _amount(mapping(entry.get("mem_usage")).get("used_vram")))}
    accelerators = tuple(
        Accelerator(
            index=0,
            board=b.index,
            name=b.name,
            memory_bytes=b.memory_bytes,
            free_memory_bytes=max(0, b.memory_bytes - used[b.index]) if b.memory_bytes and b.index in used else None,
            uuid=b.uuid,
            compute_units=b.compute_units,
            compute_share=1.0,
        )
        for b in boards
    )
    version = text_of(mapping(entries[0].get("driver")).get("version"))
    return Found(
        boards=boards,
        accelerators=numbered(accelerators),
        links=_links(machine, notes),
        software=Software(driver=version),
    )


def _entries(document: object) -> list[dict[str, object]]:
    listed = mapping(document).get("gpu_data", document)
    return [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []


def _amount(value: object) -> int | None:
    """Bytes of ``{"value": 196592, "unit": "MB"}`` (amd-smi's MB are 2^20) or of a text like ``196592 MB``."""
    if isinstance(value, dict):
        size, unit = number(text_of(value.get("value"))), text_of(value.get("unit"))
    else:
        parts = (text_of(value) or "").split()
        size, unit = (number(parts[0]), parts[1]) if len(parts) == 2 else (None, None)
    return int(size * UNITS[unit]) if size and unit in UNITS else None


def _plain(value: object) -> str | None:
    return text_of(mapping(value).get("value")) if isinstance(value, dict) else text_of(value)


def _board(index: int, entry: dict[str, object]) -> Board:
    asic, bus, numa = (mapping(entry.get(key)) for key in ("asic", "bus", "numa"))
    limit, partition = mapping(entry.get("limit")), mapping(entry.get("partition"))
    device = whole(text_of(asic.get("device_id")))
    node = whole(text_of(numa.get("node")))
    return Board(
        index=index,
        vendor="amd",
        name=text_of(asic.get("market_name")),
        architecture=text_of(asic.get("target_graphics_version")),
        uuid=text_of(mapping(entry.get("driver")).get("uuid")),
        pci_id=f"1002:{device:04x}" if device is not None and 0 <= device < 1 << 16 else None,
        pci_address=(text_of(bus.get("bdf")) or "").lower() or None,
        memory_bytes=_amount(mapping(entry.get("vram")).get("size")),
        compute_units=whole(text_of(asic.get("num_compute_units"))),
        numa_node=node if node is not None and node >= 0 else None,
        power_limit_watts=number(_plain(limit.get("max_power") or limit.get("current_power_limit"))),
        partition_mode=text_of(partition.get("compute_partition") or partition.get("accelerator_partition")),
        memory_partition_mode=text_of(partition.get("memory_partition")),
        state="ok",
        pcie=Pcie(
            generation_max=GENERATIONS.get(_plain(bus.get("max_pcie_speed")) or ""),
            width_max=whole(_plain(bus.get("max_pcie_width"))),
        ),
    )


def _metrics(machine: Machine, notes: Notes) -> dict[int, dict[str, object]]:
    """What changes from moment to moment, by the number of the board."""
    text = told_by(machine, ("amd-smi", "metric", "--json"), SECONDS, notes, "accelerators.free_memory_bytes")
    return dict(enumerate(_entries(json_of(text))))


def _with_metrics(board: Board, now: dict[str, object]) -> Board:
    link, heat, errors = (mapping(now.get(key)) for key in ("pcie", "temperature", "ecc"))
    width = whole(_plain(link.get("width")))
    hottest = (number(_plain(heat.get(place))) for place in ("hotspot", "edge"))
    return replace(
        board,
        temperature_c=next((degrees for degrees in hottest if degrees is not None), None),
        ecc_errors=whole(_plain(errors.get("total_uncorrectable_count"))),
        pcie=replace(
            board.pcie,
            generation=GENERATIONS.get(_plain(link.get("speed")) or ""),
            width=width if width and width <= 32 else None,
        ),
    )


def _links(machine: Machine, notes: Notes) -> tuple[Link, ...]:
    """XGMI and PCIe pairs of ``amd-smi topology --json``."""
    found: dict[tuple[int, int], Link] = {}
    text = told_by(machine, ("amd-smi", "topology", "--json"), SECONDS, notes, "links")
    for entry in _entries(json_of(text)):
        a = whole(text_of(entry.get("gpu")))
        links = entry.get("links")
        for link in links if isinstance(links, list) else []:
            b = whole(text_of(mapping(link).get("gpu")))
            kind = (text_of(mapping(link).get("link_type")) or "").lower()
            if a is not None and b is not None and a != b and kind in ("xgmi", "pcie"):
                pair = (min(a, b), max(a, b))
                found[pair] = Link(a=pair[0], b=pair[1], kind=kind, bandwidth_bytes_per_s=_rate(mapping(link)))
    return tuple(found[pair] for pair in sorted(found))


def _rate(link: dict[str, object]) -> float | None:
    """One direction of ``"50000-50000"`` megabytes a second: least and most, of which the most is the link's own."""
    match = re.fullmatch(r"(?:\d{1,9}-)?(\d{1,9})", text_of(link.get("bandwidth")) or "")
    return float(match.group(1)) * 1e6 or None if match else None
